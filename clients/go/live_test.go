package runlane

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

func TestRunIsStartedAndItsAnswerRead(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	manager := NewSessionManager(client, unique("s"), WithAgent("echo"))
	result := must[*RunResult](t)(manager.Run(ctx, Start, Text("hello")))
	if !result.Completed() || result.Text() != "You said: hello" {
		t.Fatalf("got %v with %q", result.Run.GetOutcome(), result.Text())
	}
	_, err := manager.Submit(ctx, Steer, Text("more"))
	if !errors.Is(err, SessionIdle) {
		t.Fatalf("steering an idle session: %v", err)
	}
	_, err = manager.Submit(ctx, Start, Text(" "))
	if !errors.Is(err, InputEmpty) {
		t.Fatalf("empty input: %v", err)
	}
}

// A gate holds a model until it is opened.
type gate struct{ begun, open chan struct{} }

func newGate() *gate { return &gate{make(chan struct{}, 100), make(chan struct{})} }

func (g *gate) pass(ctx context.Context) error {
	g.begun <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestEveryModeTakesItsRoute(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	name := unique("agent")
	held := newGate()
	work(t, client, Agent{Name: name, Model: ModelFunc(
		func(ctx context.Context, turn *Turn) (*Reply, error) {
			if err := held.pass(ctx); err != nil {
				return nil, err
			}
			return Say("done: " + turn.Last()), nil
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(name))
	first := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Auto, Text("one")))
	<-held.begun
	if _, err := manager.Submit(ctx, Start, Text("x")); !errors.Is(err, SessionBusy) {
		t.Fatalf("start while busy: %v", err)
	} else {
		var told *Error
		if !errors.As(err, &told) || told.Metadata["run_id"] != first.Submission.RunId {
			t.Fatalf("busy names no run: %v", told)
		}
	}
	for _, one := range []struct {
		mode  Mode
		route runlanev1.Submission_Route
	}{
		{Auto, runlanev1.Submission_ROUTE_STEER},
		{Steer, runlanev1.Submission_ROUTE_STEER},
		{Queue, runlanev1.Submission_ROUTE_FOLLOW_UP},
		{FollowUp, runlanev1.Submission_ROUTE_FOLLOW_UP},
	} {
		answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, one.mode, Text(one.mode.String())))
		if answer.Submission.Route != one.route {
			t.Errorf("%v took %v", one.mode, answer.Submission.Route)
		}
	}
	state := must[*runlanev1.LiveState](t)(manager.LiveState(ctx, 10))
	if len(state.PendingSubmissions) != 4 || state.Run.RunId != first.Submission.RunId {
		t.Fatalf("live state: %v", state)
	}
	withdrawn := state.PendingSubmissions[3].SubmissionId
	must[*runlanev1.WithdrawSubmissionResponse](t)(manager.Withdraw(ctx, withdrawn))
	replaced := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Replace, Text("instead")))
	<-held.begun
	close(held.open)
	result := must[*RunResult](t)(manager.Wait(ctx, replaced.Submission.RunId))
	if result.Text() != "done: instead" {
		t.Fatalf("the run that replaced said %q", result.Text())
	}
	ended := must[*RunResult](t)(manager.Wait(ctx, first.Submission.RunId))
	if ended.Run.Outcome.StopReason != runlanev1.Run_STOP_REASON_CANCELLED {
		t.Fatalf("the replaced run: %v", ended.Run.Outcome)
	}
}

func TestSteersAreDeliveredAndTheRunGoesOn(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	name := unique("agent")
	held := newGate()
	work(t, client, Agent{Name: name, Model: ModelFunc(
		func(ctx context.Context, turn *Turn) (*Reply, error) {
			if err := held.pass(ctx); err != nil {
				return nil, err
			}
			return Say("heard " + turn.Last()), nil
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(name))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("one")))
	<-held.begun
	must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Steer, Text("two")))
	close(held.open)
	result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if result.Text() != "heard two" || result.Run.Usage.ModelStepsCommitted != 2 {
		t.Fatalf("%q after %v steps", result.Text(), result.Run.Usage)
	}
}

func TestInterruptStopsTheModel(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	name := unique("agent")
	held := newGate()
	stopped := make(chan error, 1)
	work(t, client, Agent{Name: name, Model: ModelFunc(
		func(ctx context.Context, _ *Turn) (*Reply, error) {
			err := held.pass(ctx)
			stopped <- context.Cause(ctx)
			return nil, err
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(name))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("one")))
	<-held.begun
	asked := must[*runlanev1.InterruptRunResponse](t)(manager.Interrupt(ctx, "", "enough", 20*time.Second))
	if !asked.Settled || <-stopped != errCancelRequested {
		t.Fatalf("interrupt: %v", asked)
	}
	result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if result.Run.Outcome.StopReason != runlanev1.Run_STOP_REASON_CANCELLED {
		t.Fatalf("ended %v", result.Run.Outcome)
	}
}

func TestPauseTakesTheBoundaryAndUnpauseGoesOn(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	name := unique("agent")
	held := newGate()
	tool := Tool{Name: "look", Idempotent: true, Run: func(
		context.Context, *ToolCall) ([]*runlanev1.Block, error) {
		return Text("seen"), nil
	}}
	work(t, client, Agent{Name: name, Tools: []Tool{tool}, Model: ModelFunc(
		func(ctx context.Context, turn *Turn) (*Reply, error) {
			if turn.Step > 1 {
				return Say("after " + turn.Last()), nil
			}
			if err := held.pass(ctx); err != nil {
				return nil, err
			}
			return &Reply{Content: []*runlanev1.Block{ToolUseBlock("1", "look", "{}")}}, nil
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(name))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("one")))
	<-held.begun
	paused := must[*runlanev1.PauseRunResponse](t)(manager.Pause(ctx, ""))
	if paused.Receipt != runlanev1.PauseReceipt_PAUSE_RECEIPT_REQUESTED {
		t.Fatalf("pause: %v", paused.Receipt)
	}
	close(held.open)
	result := must[*RunResult](t)(manager.WaitStopped(ctx, answer.Submission.RunId))
	if result.Run.Phase != runlanev1.Run_PHASE_PAUSED {
		t.Fatalf("stopped in %v", result.Run.Phase)
	}
	restored := must[*runlanev1.RestoreRunResponse](t)(
		manager.Restore(ctx, answer.Submission.RunId, "", false))
	if restored.Outcome != runlanev1.RestoreRunResponse_OUTCOME_ATTACHED {
		t.Fatalf("restoring a paused run: %v", restored.Outcome)
	}
	must[*runlanev1.UnpauseRunResponse](t)(manager.Unpause(ctx, ""))
	result = must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if result.Text() != "after seen" {
		t.Fatalf("said %q", result.Text())
	}
}

func TestQuestionsOfTheServersAgentAreAnswered(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	manager := NewSessionManager(client, unique("s"), WithAgent("asker"))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	stopped := must[*RunResult](t)(manager.WaitStopped(ctx, answer.Submission.RunId))
	if stopped.Interaction.GetPrompt().GetQuestion().GetText() != "Which?" {
		t.Fatalf("asked %v", stopped.Interaction)
	}
	id := stopped.Interaction.InteractionId
	result := must[*RunResult](t)(manager.Resume(ctx, "", AnswerText("this")))
	if result.Text() != "So: this" {
		t.Fatalf("said %q", result.Text())
	}
	// The same answer again is no harm; another one is a conflict.
	must[*runlanev1.AnswerInteractionResponse](t)(manager.Answer(ctx, id, AnswerText("this")))
	if _, err := manager.Answer(ctx, id, AnswerText("that")); !errors.Is(err, InteractionConflict) {
		t.Fatalf("another answer: %v", err)
	}
	if _, err := manager.Answer(ctx, "", AnswerText("x")); !errors.Is(err, InteractionNotFound) {
		t.Fatalf("nothing is asked: %v", err)
	}
}

func TestToolsOfAllKindsGetTheirResults(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	name := unique("agent")
	arguments := `{"big": 9007199254740993, "one": 1.0, "text": "é😀"}`
	seen := make(chan string, 1)
	tokens := make(chan string, 1)
	tools := []Tool{
		{Name: "plain", Run: func(_ context.Context, call *ToolCall) ([]*runlanev1.Block, error) {
			seen <- string(call.Arguments)
			return Text("fine"), nil
		}},
		{Name: "fails", Run: func(context.Context, *ToolCall) ([]*runlanev1.Block, error) {
			return nil, errors.New("no luck")
		}},
		{Name: "panics", Run: func(context.Context, *ToolCall) ([]*runlanev1.Block, error) {
			panic("oh")
		}},
		{Name: "denied", Policy: Deny, Run: func(context.Context, *ToolCall) ([]*runlanev1.Block, error) {
			t.Error("a denied tool ran")
			return nil, nil
		}},
		{Name: "asks", Policy: AskFirst, Run: func(context.Context, *ToolCall) ([]*runlanev1.Block, error) {
			return Text("allowed"), nil
		}},
		{Name: "question", Ask: func(*ToolCall) (*runlanev1.Prompt, error) {
			return Question("How many?", "one", "two"), nil
		}},
		{Name: "form", Ask: func(*ToolCall) (*runlanev1.Prompt, error) {
			return Form("Who?", `{"type":"object","required":["name"]}`), nil
		}},
		{Name: "external", Ask: func(*ToolCall) (*runlanev1.Prompt, error) {
			return External("the kitchen"), nil
		}, Run: func(_ context.Context, call *ToolCall) ([]*runlanev1.Block, error) {
			tokens <- call.ExternalToken
			return nil, nil
		}},
		{Name: "child", Delegate: func(call *ToolCall) (*runlanev1.StartChildRun, error) {
			return &runlanev1.StartChildRun{
				Content: Text("from " + call.Name), RunOptions: &runlanev1.RunOptions{Agent: "echo"},
			}, nil
		}},
	}
	work(t, client, Agent{Name: name, Tools: tools, Model: ModelFunc(
		func(_ context.Context, turn *Turn) (*Reply, error) {
			if turn.Step > 1 {
				var told []string
				for _, message := range turn.Messages {
					if message.Role == runlanev1.Message_ROLE_TOOL {
						result := message.Content[0].GetToolResult()
						told = append(told, result.ToolCallId+"="+TextOf(result.Content))
					}
				}
				return Say(strings.Join(told, "\n")), nil
			}
			var content []*runlanev1.Block
			for _, tool := range append(slices.Clone(tools), Tool{Name: "unknown"}) {
				content = append(content, ToolUseBlock(tool.Name, tool.Name, arguments))
			}
			content = append(content, ToolUseBlock("malformed", "plain", "{oops"))
			return &Reply{Content: content}, nil
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(name))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	runID := answer.Submission.RunId
	stopped := must[*RunResult](t)(manager.WaitStopped(ctx, runID))
	if got := stopped.Interaction.GetPrompt().GetPermission().GetCalls(); len(got) != 1 ||
		got[0].ArgumentsJson != arguments {
		t.Fatalf("first it asks for permission: %v", stopped.Interaction)
	}
	if got := <-seen; got != arguments {
		t.Fatalf("the tool got %s", got)
	}
	stopped = must[*RunResult](t)(manager.Resume(ctx, "", Approve()))
	if stopped.Interaction.GetPrompt().GetQuestion() == nil {
		t.Fatalf("then it asks the question: %v", stopped.Interaction)
	}
	stopped = must[*RunResult](t)(manager.Resume(ctx, "", AnswerText("two")))
	if stopped.Interaction.GetPrompt().GetForm() == nil {
		t.Fatalf("then the form: %v", stopped.Interaction)
	}
	_, err := manager.Answer(ctx, "", AnswerForm(json.RawMessage(`{"no": 1}`)))
	if !errors.Is(err, AnswerInvalid) {
		t.Fatalf("a form that does not fit: %v", err)
	}
	form := json.RawMessage(`{"name": "Ada", "age": 1.0}`)
	stopped = must[*RunResult](t)(manager.Resume(ctx, "", AnswerForm(form)))
	if stopped.Interaction.GetPrompt().GetExternal() == nil {
		t.Fatalf("then it waits for the kitchen: %v", stopped.Interaction)
	}
	must[*runlanev1.CompleteExternalResponse](t)(client.Sessions.CompleteExternal(ctx,
		&runlanev1.CompleteExternalRequest{Token: <-tokens, Answer: &runlanev1.ExternalAnswer{
			Outcome: &runlanev1.ExternalAnswer_ResultJson{ResultJson: `{"ready": 1.0}`},
		}}))
	result := must[*RunResult](t)(manager.Wait(ctx, runID))
	got := strings.Split(result.Text(), "\n")
	want := []string{
		"plain=fine", "fails=no luck", "panics=panic: oh",
		`denied=the tool "denied" may not be used here`, "asks=allowed", "question=two",
		`form={"name": "Ada", "age": 1.0}`, `external={"ready": 1.0}`,
		"child=You said: from child", `unknown=there is no tool named "unknown"`,
	}
	for place, one := range want {
		if got[place] != one {
			t.Errorf("result %d is %q, not %q", place, got[place], one)
		}
	}
	if len(got) != len(want)+1 || !strings.HasPrefix(got[len(want)], "malformed=") {
		t.Errorf("results: %q", got)
	}
	children := 0
	history := NewSessionHistory(client)
	for child, err := range history.ChildRuns(ctx, &runlanev1.ListChildRunsRequest{RunId: runID}) {
		if err != nil || child.Parent.RunId != runID {
			t.Fatalf("child run %v: %v", child, err)
		}
		children++
	}
	if children != 1 {
		t.Fatalf("%d child runs", children)
	}
}

func TestHistoryPagesForksAndMessages(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	manager := NewSessionManager(client, unique("s"), WithAgent("echo"))
	var runs []string
	for _, word := range []string{"one", "two", "three", "four", "five"} {
		result := must[*RunResult](t)(manager.Run(ctx, Start, Text(word)))
		runs = append(runs, result.Run.RunId)
	}
	history := NewSessionHistory(client)
	var points []string
	list := history.ForkPoints(ctx, &runlanev1.ListForkPointsRequest{
		SessionId: manager.SessionID(), PageSize: 2,
	})
	for range 2 { // each range starts anew
		points = nil
		for point, err := range list {
			if err != nil {
				t.Fatal(err)
			}
			points = append(points, point.RunId)
		}
	}
	if !slices.Equal(points, runs) {
		t.Fatalf("fork points %v, runs %v", points, runs)
	}
	at := must[*History](t)(history.AtRun(ctx, runs[1]))
	if at.Header.MessageCount != 4 || len(at.Messages) != 4 {
		t.Fatalf("history at the second run: %v", at.Header)
	}
	fork := must[*runlanev1.ForkSessionResponse](t)(history.Fork(ctx, runs[1],
		WithForkInput(Text("instead"), &runlanev1.RunOptions{Agent: "echo"})))
	if fork.Digest != at.Header.Digest || fork.MessageCount != 4 {
		t.Fatalf("fork %v", fork)
	}
	must[*RunResult](t)(client.WaitRun(ctx, fork.Submission.RunId, ""))
	var texts []string
	for message, err := range history.StreamMessages(ctx, fork.Session.SessionId, 2) {
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, TextOf(message.Content))
	}
	want := []string{"two", "You said: two", "instead", "You said: instead"}
	if !slices.Equal(texts, want) {
		t.Fatalf("messages %q", texts)
	}
	forks := 0
	for session, err := range history.Forks(ctx, &runlanev1.GetLineageRequest{
		SessionId: manager.SessionID()}) {
		if err != nil || session.SessionId != fork.Session.SessionId {
			t.Fatalf("fork %v %v", session, err)
		}
		forks++
	}
	events := 0
	for event, err := range history.Events(ctx, &runlanev1.ListEventsRequest{
		Scope: &runlanev1.ListEventsRequest_RunId{RunId: runs[0]}, PageSize: 3}) {
		if err != nil || event.RunId != runs[0] {
			t.Fatalf("event %v %v", event, err)
		}
		events++
	}
	if forks != 1 || events < 6 {
		t.Fatalf("%d forks, %d events", forks, events)
	}
	for _, err := range history.Runs(ctx, &runlanev1.ListRunsRequest{SessionId: "no-such"}) {
		if !errors.Is(err, SessionNotFound) {
			t.Fatalf("no session: %v", err)
		}
	}
}

func TestCloseAndCancelTakesBackWhatWasQueued(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	manager := NewSessionManager(client, unique("s"), WithAgent(unique("nobody")))
	first := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("one")))
	second := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Queue, Text("two")))
	stream := must[*EventStream](t)(manager.Events(ctx))
	for range 2 {
		if err := manager.CloseAndCancel(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stream.Next(); err != nil && err.Error() != "EOF" {
		t.Fatalf("the stream of a closed manager: %v", err)
	}
	if _, err := manager.Submit(ctx, Start, Text("x")); !errors.Is(err, ErrManagerClosed) {
		t.Fatalf("submitting to a closed manager: %v", err)
	}
	run := must[*RunResult](t)(client.WaitRun(ctx, first.Submission.RunId, ""))
	if run.Run.Outcome.StopReason != runlanev1.Run_STOP_REASON_CANCELLED {
		t.Fatalf("the run: %v", run.Run.Outcome)
	}
	answer := must[*runlanev1.GetSubmissionResponse](t)(client.Sessions.GetSubmission(ctx,
		&runlanev1.GetSubmissionRequest{SubmissionId: second.Submission.SubmissionId}))
	if answer.Submission.State != runlanev1.Submission_STATE_WITHDRAWN {
		t.Fatalf("the queued input: %v", answer.Submission.State)
	}
}
