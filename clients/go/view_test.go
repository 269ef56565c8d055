package runlane

import (
	"context"
	"strings"
	"testing"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

func deltaOf(stream, activation string, step, base, revision int32) *runlanev1.Delta {
	return &runlanev1.Delta{
		ModelStreamId: stream, RunId: "r", ActivationId: activation, Step: step,
		Kind: runlanev1.Delta_KIND_TEXT, BaseRevision: base, Revision: revision,
	}
}

func appendOf(stream, activation string, step, base int32, text string) Item {
	delta := deltaOf(stream, activation, step, base, base+1)
	delta.Piece = &runlanev1.Delta_AppendText{AppendText: text}
	return Item{Delta: delta}
}

func snapshotOf(stream, activation string, step, revision int32, text string) Item {
	delta := deltaOf(stream, activation, step, 0, revision)
	delta.Piece = &runlanev1.Delta_SnapshotText{SnapshotText: text}
	return Item{Delta: delta}
}

func messageOf(sequence, number int64, stream string, step int32, text string) Item {
	return Item{Event: &runlanev1.Event{
		Sequence: sequence, Type: runlanev1.Event_TYPE_MESSAGE_APPENDED, RunId: "r",
		Message: &runlanev1.Message{
			Number: number, RunId: "r", ModelStreamId: stream, Step: step, Content: Text(text),
		},
		Body: &runlanev1.Event_MessageAppended{MessageAppended: &runlanev1.MessageAppended{
			Number: number, ModelStreamId: stream, Step: step,
		}},
	}}
}

func eventOf(sequence int64, event *runlanev1.Event) Item {
	event.Sequence, event.RunId = sequence, "r"
	return Item{Event: event}
}

func fold(items ...Item) *viewFold {
	folded := newViewFold()
	folded.begin(&runlanev1.LiveState{Run: &runlanev1.Run{RunId: "r"}, Sequence: 1})
	for _, item := range items {
		folded.take(item)
	}
	return folded
}

func shown(f *viewFold) string {
	var texts []string
	for _, partial := range f.view().Partials {
		texts = append(texts, partial.Text)
	}
	return strings.Join(texts, "|")
}

func TestPartialTextIsShownOnce(t *testing.T) {
	ended := func(sequence int64) Item {
		return eventOf(sequence, &runlanev1.Event{Body: &runlanev1.Event_ActivationAbandoned{}})
	}
	terminal := func(sequence int64) Item {
		return eventOf(sequence, &runlanev1.Event{Body: &runlanev1.Event_RunTerminal{}})
	}
	reserved := func(sequence int64, stream string) Item {
		return eventOf(sequence, &runlanev1.Event{Body: &runlanev1.Event_ModelStepReserved{
			ModelStepReserved: &runlanev1.ModelStepReserved{ModelStreamId: stream},
		}})
	}
	for name, one := range map[string]struct {
		items []Item
		want  string
	}{
		"grows": {[]Item{appendOf("m", "a", 1, 0, "He"), appendOf("m", "a", 1, 1, "llo")}, "Hello"},
		"a piece that comes again is dropped": {[]Item{
			appendOf("m", "a", 1, 0, "He"), appendOf("m", "a", 1, 1, "llo"),
			appendOf("m", "a", 1, 1, "llo")}, "Hello"},
		"a piece after a gap is dropped": {[]Item{
			appendOf("m", "a", 1, 0, "He"), appendOf("m", "a", 1, 2, "o")}, "He"},
		"a snapshot mends a gap": {[]Item{
			appendOf("m", "a", 1, 0, "He"), appendOf("m", "a", 1, 2, "o"),
			snapshotOf("m", "a", 1, 4, "Hello"), appendOf("m", "a", 1, 4, "!")}, "Hello!"},
		"an old snapshot is dropped": {[]Item{
			snapshotOf("m", "a", 1, 4, "Hello"), snapshotOf("m", "a", 1, 2, "He")}, "Hello"},
		"its message replaces it": {[]Item{
			appendOf("m", "a", 1, 0, "He"), messageOf(2, 1, "m", 1, "Hello")}, ""},
		"nothing comes after its message": {[]Item{
			messageOf(2, 1, "m", 1, "Hello"), snapshotOf("m", "a", 1, 3, "Hello")}, ""},
		"the next step is shown": {[]Item{
			messageOf(2, 1, "m", 1, "Hello"), appendOf("n", "a", 2, 0, "And")}, "And"},
		"a lost executor takes it along": {[]Item{appendOf("m", "a", 1, 0, "He"), ended(2)}, ""},
		"the next executor begins anew": {[]Item{
			appendOf("m", "a", 1, 0, "He"), appendOf("m", "b", 1, 0, "Hi")}, "Hi"},
		"a newer request replaces it": {[]Item{appendOf("m", "a", 1, 0, "He"), reserved(2, "n")}, ""},
		"the end of the run ends it":  {[]Item{appendOf("m", "a", 1, 0, "He"), terminal(2)}, ""},
		"nothing comes after the end of the run": {[]Item{
			terminal(2), snapshotOf("m", "a", 1, 1, "He")}, ""},
	} {
		if got := shown(fold(one.items...)); got != one.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestAViewIsBounded(t *testing.T) {
	folded := fold()
	WithViewMessages(3)(folded)
	for number := range int64(9) {
		folded.take(messageOf(number+2, number+1, "", 0, "m"))
		folded.take(messageOf(number+2, number+1, "", 0, "m"))
	}
	if got := folded.view().Messages; len(got) != 3 || got[0].Number != 7 {
		t.Fatalf("messages %v", got)
	}
	large := strings.Repeat("x", 3<<20)
	WithViewMessages(200)(folded)
	for number := range int64(9) {
		folded.take(messageOf(number+20, number+10, "", 0, large))
	}
	if got := folded.view().Messages; len(got) != 5 || got[4].Number != 18 {
		t.Fatalf("%d large messages", len(got))
	}
	for revision := range int32(9) {
		folded.take(appendOf("m", "a", 1, revision, large))
	}
	if got := shown(folded); len(got) > 3<<20 {
		t.Fatalf("a partial of %d bytes", len(got))
	}
}

func TestAViewKnowsWhatItHasToReadAgain(t *testing.T) {
	folded := fold(eventOf(2, &runlanev1.Event{Body: &runlanev1.Event_InteractionOpened{}}))
	if !folded.stale {
		t.Fatal("a question was opened, and it is not read")
	}
	folded.know(&runlanev1.LiveState{Sequence: 5})
	folded.take(eventOf(4, &runlanev1.Event{Body: &runlanev1.Event_SubmissionPending{}}))
	if folded.stale {
		t.Fatal("what is known is read again")
	}
	folded.take(eventOf(6, &runlanev1.Event{MaySkip: true}))
	if folded.stale {
		t.Fatal("what may be skipped is read")
	}
	folded.take(eventOf(7, &runlanev1.Event{}))
	if !folded.stale {
		t.Fatal("an event of a type that is not known, and may not be skipped, is skipped")
	}
}

func TestAViewShowsOpenToolsAndQuestions(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	agent := unique("agent")
	held := newGate()
	look := Tool{Name: "look", Run: func(ctx context.Context, _ *ToolCall) ([]*runlanev1.Block, error) {
		return Text("seen"), held.pass(ctx)
	}}
	ask := Tool{Name: "ask", Ask: func(*ToolCall) (*runlanev1.Prompt, error) {
		return Question("Well?"), nil
	}}
	work(t, client, Agent{Name: agent, Tools: []Tool{look, ask}, Model: ModelFunc(
		func(_ context.Context, turn *Turn) (*Reply, error) {
			if turn.Step > 1 {
				return Say("done"), nil
			}
			return &Reply{Content: []*runlanev1.Block{
				ToolUseBlock("l", "look", `{"at": 1.0}`), ToolUseBlock("a", "ask", "{}"),
			}}, nil
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	<-held.begun
	must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Queue, Text("then")))
	scenes := 0
	for view, err := range manager.Views(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case scenes == 0 && len(view.ToolCalls) == 2:
			// What was open before the view began is in it.
			first := view.ToolCalls[0]
			if first.ArgumentsJson != `{"at": 1.0}` || first.State != runlanev1.ToolCall_STATE_CLAIMED ||
				len(view.Pending) != 1 || view.Run == nil || len(view.Messages) != 2 {
				t.Fatalf("%v", view)
			}
			scenes++
			close(held.open)
		case scenes == 1 && len(view.Interactions) == 1:
			if view.Interactions[0].GetPrompt().GetQuestion().GetText() != "Well?" ||
				len(view.ToolCalls) != 1 || view.Run.Phase != runlanev1.Run_PHASE_WAITING {
				t.Fatalf("%v", view)
			}
			scenes++
			must[*runlanev1.AnswerInteractionResponse](t)(manager.Answer(ctx, "", AnswerText("yes")))
		case scenes == 2 && view.LastEnd != nil && len(view.Pending) == 0:
			scenes++
			must[*runlanev1.DeleteSessionResponse](t)(client.Sessions.DeleteSession(ctx,
				&runlanev1.DeleteSessionRequest{SessionId: manager.SessionID(), Force: true}))
		case view.Deleted:
			scenes++
		}
	}
	if scenes != 4 {
		t.Fatalf("%d scenes were seen", scenes)
	}
}
