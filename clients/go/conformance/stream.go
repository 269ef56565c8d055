package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var errEnded = errors.New("the stream ended")

// A stream is one that is open, and what a driver looks after in each.
type stream struct {
	items  chan any
	failed chan error
	cancel context.CancelFunc
	whole  bool
	// -1: it starts anywhere.
	last     float64
	replaced map[string]bool
}

func (p *player) open(step object) error {
	client, err := p.client(step)
	if err != nil {
		return err
	}
	request, err := filled(step["request"], p.scope)
	if err != nil {
		return err
	}
	method, given := step["stream"].(string)
	if !given {
		method = "StreamEvents"
	}
	name, _ := step["open"].(string)
	asked, _ := request.(object)
	ctx, cancel := context.WithCancel(p.ctx)
	opened := &stream{
		items: make(chan any), failed: make(chan error, 1), cancel: cancel,
		whole: asked["run_ids"] == nil && asked["types"] == nil,
		last:  number(asked["after_sequence"]), replaced: map[string]bool{},
	}
	if asked["last_events"] != nil {
		opened.last = -1
	}
	p.streams[name] = opened
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		err := client.open(ctx, method, request, func(item any) bool {
			select {
			case opened.items <- item:
				return true
			case <-ctx.Done():
				return false
			}
		})
		if err == nil {
			err = errEnded
		}
		opened.failed <- err
	}()
	return nil
}

func (p *player) close(step object) error {
	name, _ := step["close"].(string)
	opened, there := p.streams[name]
	if !there {
		return fmt.Errorf("no stream is open under the name %q", name)
	}
	opened.cancel()
	delete(p.streams, name)
	return nil
}

func (p *player) read(step object) error {
	name, _ := step["read"].(string)
	opened, there := p.streams[name]
	if !there {
		return fmt.Errorf("no stream is open under the name %q", name)
	}
	var until any
	if given, bounded := step["until"]; bounded {
		var err error
		if until, err = filled(given, p.scope); err != nil {
			return err
		}
	}
	items, err := opened.take(until, time.After(milliseconds(step, "within_ms", callWithin)))
	var no *refused
	wanted, toFail := step["error"]
	ended := step["end"] == true
	switch {
	case errors.As(err, &no) && toFail:
		err = p.check(wanted, no.told)
	case err == errEnded && ended:
		err = nil
	case err == nil && (toFail || ended):
		err = errors.New("the stream did not end")
	}
	if err != nil {
		return fmt.Errorf("%w; there came %s", err, short(items))
	}
	if until != nil && len(items) > 0 {
		if err := p.check(step["until"], items[len(items)-1]); err != nil {
			return err
		}
	}
	if wanted, there := step["items"]; there {
		if items == nil {
			items = []any{}
		}
		return p.check(wanted, items)
	}
	return nil
}

// take takes items up to the first that fits.
func (s *stream) take(until any, late <-chan time.Time) ([]any, error) {
	var items []any
	for {
		select {
		case item := <-s.items:
			items = append(items, item)
			if err := s.follow(item.(object)); err != nil {
				return items, err
			}
			if until != nil && mismatch(until, item, object{}, "") == "" {
				return items, nil
			}
		case err := <-s.failed:
			// For who reads it again.
			s.failed <- err
			return items, err
		case <-late:
			return items, errors.New("what was to come did not")
		}
	}
}

// follow holds an item against what a stream promises.
func (s *stream) follow(item object) error {
	if event, ok := item["event"].(object); ok && event["sequence"] != nil {
		sequence := number(event["sequence"])
		if s.last >= 0 && (sequence <= s.last || s.whole && sequence != s.last+1) {
			return fmt.Errorf("sequence %.0f came after %.0f", sequence, s.last)
		}
		s.last = sequence
		if body, ok := event["message_appended"].(object); ok {
			if id, ok := body["model_stream_id"].(string); ok {
				s.replaced[id] = true
			}
		}
	}
	if delta, ok := item["delta"].(object); ok {
		if id, _ := delta["model_stream_id"].(string); s.replaced[id] {
			return fmt.Errorf("a piece came after the message that replaces it: %s", short(delta))
		}
	}
	return nil
}
