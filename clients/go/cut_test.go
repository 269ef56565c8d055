package runlane

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const lastInput = "the last one"

// A story streams words that no other run has, slowly enough that some are seen.
func story(ctx context.Context, turn *Turn) (*Reply, error) {
	var all strings.Builder
	for place := range 6 {
		piece := fmt.Sprintf("%s-%d 😀 ", turn.Last(), place)
		all.WriteString(piece)
		// Cut anywhere, also in the middle of a character.
		turn.Stream(piece[:len(piece)-3])
		turn.Stream(piece[len(piece)-3:])
		if err := sleep(ctx, 12*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return Say(all.String()), nil
}

func TestAStreamCut100TimesGivesEachEventOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	address := liveAddress(t)
	client := dial(t, address)
	agent := unique("story")
	work(t, client, Agent{Name: agent, Model: ModelFunc(story)})
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	must[*runlanev1.LiveState](t)(manager.LiveState(ctx, 0))

	const seed = 20240607
	read := newCuttingProxy(t, address, seed, 100)
	viewed := newCuttingProxy(t, address, seed+1, 100)
	t.Logf("seed %d", seed)
	written := make(chan error, 1)
	go func() { written <- writeOn(ctx, manager, read, viewed) }()
	views := make(chan error, 1)
	go func() { views <- watchViews(ctx, viewed.address(), manager.SessionID()) }()

	reader := dial(t, read.address())
	last, lastRun := int64(0), ""
	stream := reader.Events(ctx, manager.SessionID(), WithMessages(), WithDeltas())
	for item, err := range stream.All() {
		if err != nil {
			t.Fatal(err)
		}
		event := item.Event
		if event == nil {
			continue
		}
		if event.Sequence != last+1 {
			t.Fatalf("sequence %d after %d", event.Sequence, last)
		}
		last = event.Sequence
		if TextOf(event.GetMessage().GetContent()) == lastInput {
			lastRun = event.RunId
		}
		if event.Type == runlanev1.Event_TYPE_RUN_TERMINAL && event.RunId == lastRun {
			break
		}
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err := <-views; err != nil {
		t.Fatal(err)
	}
	if read.cutsLeft() > 0 || viewed.cutsLeft() > 0 {
		t.Fatalf("cuts that did not come: %d, %d", read.cutsLeft(), viewed.cutsLeft())
	}
	t.Logf("%d events", last)
}

// writeOn makes runs until both readers were cut often enough, and then a last one.
func writeOn(ctx context.Context, manager *SessionManager, proxies ...*cuttingProxy) error {
	for number := 0; ; number++ {
		left := 0
		for _, proxy := range proxies {
			left += max(proxy.cutsLeft(), 0)
		}
		input := fmt.Sprintf("run%d", number)
		if left == 0 {
			input = lastInput
		}
		if _, err := manager.Run(ctx, Queue, Text(input)); err != nil || left == 0 {
			return err
		}
	}
}

// watchViews holds each view against what a session may show.
func watchViews(ctx context.Context, address, sessionID string) error {
	client, err := New(address, WithAPIKey(""))
	if err != nil {
		return err
	}
	defer client.Close()
	shown := &shownViews{written: map[string]string{}, partials: map[string]string{}}
	for view, err := range NewSessionManager(client, sessionID).Views(ctx, WithViewMessages(10)) {
		if err != nil {
			return err
		}
		if err := shown.take(view); err != nil {
			return err
		}
		ended := view.LastEnd.GetRunId()
		for _, message := range view.Messages {
			if TextOf(message.Content) == lastInput && message.RunId == ended {
				return shown.check(view)
			}
		}
	}
	return fmt.Errorf("the views ended by themselves")
}

// shownViews is what views have shown: texts by model stream.
type shownViews struct {
	written, partials map[string]string
	last              int64
}

func (s *shownViews) take(view *View) error {
	if view.Sequence < s.last {
		return fmt.Errorf("a view at %d after one at %d", view.Sequence, s.last)
	}
	s.last = view.Sequence
	for place, message := range view.Messages {
		if place > 0 && message.Number != view.Messages[place-1].Number+1 {
			return fmt.Errorf("message %d after %d", message.Number, view.Messages[place-1].Number)
		}
		if message.ModelStreamId != "" {
			s.written[message.ModelStreamId] = TextOf(message.Content)
		}
	}
	for _, partial := range view.Partials {
		if whole, done := s.written[partial.ModelStreamID]; done {
			return fmt.Errorf("%q is shown beside its message %q", partial.Text, whole)
		}
		s.partials[partial.ModelStreamID] = partial.Text
	}
	return nil
}

func (s *shownViews) check(last *View) error {
	if len(last.Partials) > 0 || last.Run != nil || len(s.partials) == 0 {
		return fmt.Errorf("%d partials are left, %d were seen", len(last.Partials), len(s.partials))
	}
	for stream, text := range s.partials {
		if whole, done := s.written[stream]; done && !strings.HasPrefix(whole, text) {
			return fmt.Errorf("%q was shown of %q", text, whole)
		}
	}
	return nil
}
