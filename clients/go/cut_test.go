package runlane

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const cutRuns = 40

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
	go func() {
		for number := range cutRuns {
			_, _ = manager.Submit(ctx, Queue, Text(fmt.Sprintf("run%d", number)))
		}
	}()
	views := make(chan error, 1)
	go func() {
		views <- watchViews(ctx, dialQuietly(viewed.address()), manager.SessionID(), agent)
	}()

	reader := dial(t, read.address())
	ended, last := 0, int64(0)
	for item, err := range reader.Events(ctx, manager.SessionID(), WithMessages(), WithDeltas()).All() {
		if err != nil {
			t.Fatal(err)
		}
		if item.Event == nil {
			continue
		}
		if item.Event.Sequence != last+1 {
			t.Fatalf("sequence %d after %d", item.Event.Sequence, last)
		}
		last = item.Event.Sequence
		if item.Event.Type == runlanev1.Event_TYPE_RUN_TERMINAL {
			ended++
		}
		// Until there were enough cuts, it is read again and again.
		if ended == cutRuns {
			break
		}
	}
	for again := 0; read.cutsLeft() > 0; again++ {
		count, err := readAll(reader.Events(ctx, manager.SessionID(), WithMessages(), UntilNow()))
		if err != nil || int64(len(count)) < last {
			t.Fatalf("reading %d again: %d events, %v", again, len(count), err)
		}
	}
	if err := <-views; err != nil {
		t.Fatal(err)
	}
	t.Logf("%d events, %d cuts of the view", last, 100-viewed.cutsLeft())
}

func dialQuietly(address string) *Client {
	client, err := New(address, WithAPIKey(""))
	if err != nil {
		panic(err)
	}
	return client
}

// watchViews holds each view against what a session may show.
func watchViews(ctx context.Context, client *Client, sessionID, agent string) error {
	defer client.Close()
	manager := NewSessionManager(client, sessionID, WithAgent(agent))
	written := map[string]string{}
	seen := map[string]string{}
	partials, last := 0, int64(0)
	for view, err := range manager.Views(ctx, WithViewMessages(10)) {
		if err != nil {
			return err
		}
		if view.Sequence < last {
			return fmt.Errorf("a view at %d after one at %d", view.Sequence, last)
		}
		last = view.Sequence
		for place, message := range view.Messages {
			if place > 0 && message.Number != view.Messages[place-1].Number+1 {
				return fmt.Errorf("message %d after %d", message.Number, view.Messages[place-1].Number)
			}
			if message.ModelStreamId != "" {
				written[message.ModelStreamId] = TextOf(message.Content)
			}
		}
		for _, partial := range view.Partials {
			partials++
			if whole, done := written[partial.ModelStreamID]; done {
				return fmt.Errorf("%q is shown beside its message %q", partial.Text, whole)
			}
			seen[partial.ModelStreamID] = partial.Text
		}
		if len(view.Messages) > 0 && view.Run == nil &&
			view.Messages[len(view.Messages)-1].Number == 2*cutRuns {
			if len(view.Partials) > 0 {
				return fmt.Errorf("partials are left: %v", view.Partials)
			}
			break
		}
	}
	for stream, text := range seen {
		if whole, done := written[stream]; done && !strings.HasPrefix(whole, text) {
			return fmt.Errorf("%q was shown of %q", text, whole)
		}
	}
	if partials == 0 {
		return fmt.Errorf("no partial text was seen")
	}
	return nil
}
