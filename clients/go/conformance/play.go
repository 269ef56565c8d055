package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"
)

const (
	callWithin     = 15 * time.Second
	scenarioWithin = 90 * time.Second
	lookEach       = 50 * time.Millisecond
)

// A player plays one scenario once.
type player struct {
	scenario *scenario
	connect  func() (*binding, error)
	ctx      context.Context
	clients  map[string]*binding
	streams  map[string]*stream
	started  map[string]chan outcome
	scope    object
	where    []string
	work     sync.WaitGroup
}

// An outcome is what a call came to.
type outcome struct {
	answer any
	err    error
}

// play plays a scenario; the error tells the step.
func play(one *scenario, connect func() (*binding, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), scenarioWithin)
	p := &player{
		scenario: one, connect: connect, ctx: ctx, clients: map[string]*binding{},
		streams: map[string]*stream{}, started: map[string]chan outcome{}, scope: object{},
	}
	for _, name := range append([]string{"session", "agent", "executor"}, one.IDs...) {
		var random [8]byte
		_, _ = rand.Read(random[:])
		p.scope[name] = name + "-" + hex.EncodeToString(random[:])
	}
	defer func() {
		cancel()
		p.work.Wait()
		for _, client := range p.clients {
			client.close()
		}
	}()
	if err := p.steps(one.Steps); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(p.where, " > "), err)
	}
	return nil
}

func (p *player) steps(steps []object) error {
	verbs := []struct {
		name string
		do   func(object) error
	}{
		{"call", p.call}, {"join", p.join}, {"open", p.open}, {"read", p.read},
		{"close", p.close}, {"together", p.together}, {"repeat", p.repeat}, {"use", p.use},
	}
	for place, step := range steps {
		verb := -1
		for candidate := range verbs {
			if _, there := step[verbs[candidate].name]; there {
				verb = candidate
				break
			}
		}
		if verb < 0 {
			return fmt.Errorf("step %d has no verb", place+1)
		}
		about := step[verbs[verb].name]
		if list, ok := about.([]any); ok {
			about = fmt.Sprintf("of %d", len(list))
		}
		p.where = append(p.where, fmt.Sprintf("step %d (%s %v)", place+1, verbs[verb].name, about))
		if err := verbs[verb].do(step); err != nil {
			return err
		}
		p.where = p.where[:len(p.where)-1]
	}
	return nil
}

// client returns the connection of a step; to be called by the player's own goroutine.
func (p *player) client(step object) (*binding, error) {
	name, ok := step["client"].(string)
	if !ok {
		name = "a"
	}
	if client, there := p.clients[name]; there {
		return client, nil
	}
	client, err := p.connect()
	if err == nil {
		p.clients[name] = client
	}
	return client, err
}

func (p *player) check(pattern, value any) error {
	wanted, err := filled(pattern, p.scope)
	if err != nil {
		return err
	}
	captures := object{}
	if why := mismatch(wanted, value, captures, ""); why != "" {
		return errors.New(why)
	}
	maps.Copy(p.scope, captures)
	return nil
}

// --- calls -----------------------------------------------------------------

func (p *player) call(step object) error {
	if name, started := step["start"].(string); started {
		call, err := p.prepared(step, p.scope)
		if err != nil {
			return err
		}
		p.started[name] = p.begin(call)
		return nil
	}
	end := time.Now().Add(milliseconds(step, "until_ms", 0))
	for {
		call, err := p.prepared(step, p.scope)
		if err != nil {
			return err
		}
		err = p.settle(step, call())
		if err == nil || time.Now().After(end) {
			return err
		}
		time.Sleep(lookEach)
	}
}

// prepared fills a request, and returns what makes its call.
func (p *player) prepared(step object, scope object) (func() outcome, error) {
	client, err := p.client(step)
	if err != nil {
		return nil, err
	}
	var request any = object{}
	if given, there := step["request"]; there {
		if request, err = filled(given, scope); err != nil {
			return nil, err
		}
	}
	name, _ := step["call"].(string)
	within := milliseconds(step, "within_ms", callWithin)
	return func() outcome {
		ctx, cancel := context.WithTimeout(p.ctx, within)
		defer cancel()
		var made outcome
		if step["all_pages"] == true {
			made.answer, made.err = client.pages(ctx, name, request)
		} else {
			made.answer, made.err = client.call(ctx, name, request, step["raw"] == true)
		}
		if ctx.Err() != nil {
			made.err = fmt.Errorf("%s took longer than %v", name, within)
		}
		return made
	}, nil
}

func (p *player) begin(call func() outcome) chan outcome {
	done := make(chan outcome, 1)
	p.work.Add(1)
	go func() {
		defer p.work.Done()
		done <- call()
	}()
	return done
}

func (p *player) settle(step object, made outcome) error {
	var no *refused
	wanted, toFail := step["error"]
	switch {
	case errors.As(made.err, &no) && toFail:
		return p.check(wanted, no.told)
	case made.err != nil:
		return made.err
	case toFail:
		return fmt.Errorf("it was not refused, expected %s", short(wanted))
	}
	if expected, there := step["expect"]; there {
		if err := p.check(expected, made.answer); err != nil {
			return err
		}
	}
	if name, there := step["as"].(string); there {
		p.scope[name] = made.answer
	}
	return nil
}

func (p *player) join(step object) error {
	name, _ := step["join"].(string)
	done, there := p.started[name]
	if !there {
		return fmt.Errorf("no call was started under the name %q", name)
	}
	delete(p.started, name)
	return p.settle(step, <-done)
}

func (p *player) together(step object) error {
	var running []chan outcome
	list, _ := step["together"].([]any)
	for _, one := range list {
		call := one.(object)
		copies := 1
		if given, there := call["copies"]; there {
			copies = int(number(given))
		}
		for copy := range copies {
			made, err := p.prepared(call, with(p.scope, object{"i": float64(copy + 1)}))
			if err != nil {
				return err
			}
			running = append(running, p.begin(made))
		}
	}
	outcomes, _ := step["outcomes"].([]any)
	counts := make([]int, len(outcomes))
	for _, done := range running {
		made := <-done
		var reasons []string
		for place, allowed := range outcomes {
			err := p.settle(allowed.(object), made)
			if err == nil {
				counts[place]++
				reasons = nil
				break
			}
			reasons = append(reasons, err.Error())
		}
		if reasons != nil {
			return fmt.Errorf("no outcome fits: %s", strings.Join(reasons, "; "))
		}
	}
	for place, allowed := range outcomes {
		if expected := int(number(allowed.(object)["count"])); counts[place] != expected {
			return fmt.Errorf("outcome %d came %d times, expected %d", place+1, counts[place], expected)
		}
	}
	return nil
}

func (p *player) repeat(step object) error {
	list, _ := step["steps"].([]any)
	steps := make([]object, len(list))
	for place, one := range list {
		steps[place] = one.(object)
	}
	for count := range int(number(step["repeat"])) {
		p.scope["i"] = float64(count + 1)
		if err := p.steps(steps); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) use(step object) error {
	name, _ := step["use"].(string)
	shared, there := p.scenario.shared[name]
	if !there {
		return fmt.Errorf("there are no shared steps %q", name)
	}
	given, _ := step["with"].(object)
	values, err := filled(with(with(object{}, shared.Defaults), given), p.scope)
	if err != nil {
		return err
	}
	maps.Copy(p.scope, values.(object))
	return p.steps(shared.Steps)
}

func milliseconds(step object, key string, otherwise time.Duration) time.Duration {
	if given, there := step[key]; there {
		return time.Duration(number(given)) * time.Millisecond
	}
	return otherwise
}
