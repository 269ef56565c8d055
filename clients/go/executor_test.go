package runlane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

func TestAnExecutorWhoseConnectionIsCutDoesEachThingOnce(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	address := liveAddress(t)
	client := dial(t, address)
	const seed, cuts = 4711, 60
	t.Logf("seed %d", seed)
	proxy := newCuttingProxy(t, address, seed, cuts)
	agent, file := unique("effect"), filepath.Join(t.TempDir(), "effects")
	work(t, dial(t, proxy.address()), effectAgent(agent, file, false, func(context.Context, string) {}))
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	runs := 0
	for ; proxy.cutsLeft() > 0; runs++ {
		result := must[*RunResult](t)(manager.Run(ctx, Start, Text("go")))
		// A lease whose poll was cut before its answer is given back by the server: so there may
		// be several attempts, and yet one effect.
		if !result.Completed() || result.Text() != "it is done" {
			t.Fatalf("run %d, attempt %d: %v", runs, result.Run.Attempt, result.Run.Outcome)
		}
	}
	if got := effects(t, file); got != runs {
		t.Fatalf("%d effects of %d runs", got, runs)
	}
	t.Logf("%d runs", runs)
}

func TestWorkStopsWhereTheLeaseIsLost(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	agent := unique("agent")
	held := newGate()
	stopped := make(chan error, 1)
	work(t, client, Agent{Name: agent, Model: ModelFunc(
		func(ctx context.Context, turn *Turn) (*Reply, error) {
			if turn.Attempt > 1 {
				return Say("by the second attempt"), nil
			}
			err := held.pass(ctx)
			stopped <- context.Cause(ctx)
			return Say("by the first"), err
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	<-held.begun
	state := must[*runlanev1.LiveState](t)(manager.LiveState(ctx, 0))
	activation := state.Run.Activation.ActivationId
	if _, err := manager.Restore(ctx, state.Run.RunId, "act_0", true); !errors.Is(err, ActivationMismatch) {
		t.Fatalf("another activation: %v", err)
	}
	restored := must[*runlanev1.RestoreRunResponse](t)(
		manager.Restore(ctx, state.Run.RunId, activation, true))
	if restored.Outcome != runlanev1.RestoreRunResponse_OUTCOME_RECOVERY_QUEUED {
		t.Fatalf("restored: %v", restored.Outcome)
	}
	if cause := <-stopped; !errors.Is(cause, errLost) {
		t.Fatalf("the model was stopped by %v", cause)
	}
	result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if result.Text() != "by the second attempt" {
		t.Fatalf("it said %q", result.Text())
	}
}

func TestAContextThatIsLargeIsStreamed(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	agent := unique("agent")
	work(t, client, Agent{Name: agent, Model: ModelFunc(
		func(_ context.Context, turn *Turn) (*Reply, error) {
			size := 0
			for place, message := range turn.Messages {
				if message.Number != int64(place+1) {
					return nil, fmt.Errorf("message %d at %d", message.Number, place)
				}
				size += len(TextOf(message.Content))
			}
			return Say(fmt.Sprint(size)), nil
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	// 2.25 MiB of emoji: four bytes each, which nothing may cut.
	large := strings.Repeat("😀", 9<<16)
	for number, want := range []string{"2359296", "4718599", "7077902"} {
		result := must[*RunResult](t)(manager.Run(ctx, Start, Text(large)))
		if result.Text() != want {
			t.Fatalf("run %d saw %s bytes, not %s", number, result.Text(), want)
		}
	}
	history := must[*History](t)(NewSessionHistory(client).AtRun(ctx, lastRun(ctx, t, client, manager)))
	if len(history.Messages) != 6 || TextOf(history.Messages[4].Content) != large {
		t.Fatalf("the history has %d messages", len(history.Messages))
	}
	over := strings.Repeat("x", 3<<20+1)
	if _, err := manager.Submit(ctx, Start, Text(over)); !errors.Is(err, MessageTooLarge) {
		t.Fatalf("more than 3 MiB: %v", err)
	}
}

func lastRun(ctx context.Context, t *testing.T, client *Client, manager *SessionManager) string {
	t.Helper()
	last := ""
	for run, err := range NewSessionHistory(client).Runs(ctx, &runlanev1.ListRunsRequest{
		SessionId: manager.SessionID(), PageSize: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		last = run.RunId
	}
	return last
}

func TestPollsThatAreRefusedEndTheExecutor(t *testing.T) {
	fake := &fakeService{poll: func() error {
		return refusal(t, codes.PermissionDenied, "SCOPE_MISSING")
	}}
	agents := []Agent{{Name: "a", Model: ModelFunc(
		func(context.Context, *Turn) (*Reply, error) { return nil, nil })}}
	executor := must[*Executor](t)(NewExecutor(serveFake(t, fake), agents))
	if err := executor.Run(within(t)); !errors.Is(err, ScopeMissing) {
		t.Fatalf("it ended with %v", err)
	}
	if err := executor.Run(within(t)); err == nil {
		t.Fatal("it ran twice")
	}
	// What passes does not.
	var ids []string
	ctx, cancel := context.WithCancel(within(t))
	fake = &fakeService{}
	fake.poll = func() error {
		ids = append(ids, fake.pollID)
		if len(ids) == 4 {
			cancel()
		}
		return status.Error(codes.Internal, "odd")
	}
	executor = must[*Executor](t)(NewExecutor(serveFake(t, fake), agents))
	if err := executor.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended with %v", err)
	}
	if len(ids) < 4 || ids[0] != ids[3] || ids[0] == "" {
		t.Fatalf("polls %q", ids)
	}
}

func TestAnExecutorIsMadeOfWhatFits(t *testing.T) {
	client := serveFake(t, &fakeService{})
	model := ModelFunc(func(context.Context, *Turn) (*Reply, error) { return nil, nil })
	run := func(context.Context, *ToolCall) ([]*runlanev1.Block, error) { return nil, nil }
	delegate := func(*ToolCall) (*runlanev1.StartChildRun, error) { return nil, nil }
	for name, agents := range map[string][]Agent{
		"none":              nil,
		"no model":          {{Name: "a"}},
		"two of one name":   {{Name: "a", Model: model}, {Name: "a", Model: model}},
		"a tool of no name": {{Name: "a", Model: model, Tools: []Tool{{Run: run}}}},
		"a tool that does nothing": {{Name: "a", Model: model, Tools: []Tool{
			{Name: "t"}}}},
		"two tools of one name": {{Name: "a", Model: model, Tools: []Tool{
			{Name: "t", Run: run}, {Name: "t", Run: run}}}},
		"a tool that does two things": {{Name: "a", Model: model, Tools: []Tool{
			{Name: "t", Run: run, Delegate: delegate}}}},
	} {
		if _, err := NewExecutor(client, agents); err == nil {
			t.Errorf("%s: it was made", name)
		}
	}
}

func TestToolUsesAreSettledAsTheServiceTakesThem(t *testing.T) {
	uses := []*runlanev1.Block{
		ToolUseBlock("a b/c", "one", `{"x": 9007199254740993, "y": 1.0}`),
		ToolUseBlock("a b/c", "", ""),
		ToolUseBlock("", "three", `[1]`),
		ToolUseBlock("taken", "four", `{"x": NaN}`),
		{Block: &runlanev1.Block_ToolUse{ToolUse: &runlanev1.ToolUse{
			ToolCallId: "t", Name: "five",
			Arguments: &runlanev1.ToolUse_ArgumentsText{ArgumentsText: ` {"x": 1}`},
		}}},
	}
	settled := settleUses(uses, map[string]bool{"taken": true}, 3, false)
	var got []string
	for _, block := range settled {
		use := block.GetToolUse()
		got = append(got, fmt.Sprintf("%s %s json=%s text=%s",
			use.ToolCallId, use.Name, use.GetArgumentsJson(), use.GetArgumentsText()))
	}
	want := []string{
		`a-b-c one json={"x": 9007199254740993, "y": 1.0} text=`,
		`a-b-c-2 unnamed json={} text=`,
		`call_3_3 three json= text=[1]`,
		`taken-2 four json= text={"x": NaN}`,
		`t five json= {"x": 1} text=`,
	}
	for place := range want {
		if got[place] != want[place] {
			t.Errorf("%q is not %q", got[place], want[place])
		}
	}
	if uses[0].GetToolUse().ToolCallId != "a b/c" {
		t.Error("what the model gave was changed")
	}
}

func TestResultsAreCutToWhatIsTaken(t *testing.T) {
	long := checkedResult("c", runlanev1.ToolResult_OUTCOME_OK, Text(strings.Repeat("é", 1<<20)))
	if text := TextOf(long.Content); len(text) > resultBytes ||
		!strings.HasSuffix(text, "é\n[cut: the whole has 2097152 bytes]") {
		t.Errorf("%d bytes, ending %q", len(text), text[len(text)-50:])
	}
	many := checkedResult("c", runlanev1.ToolResult_OUTCOME_OK, make([]*runlanev1.Block, 257))
	if !isFailure(many) {
		t.Error("257 blocks were taken")
	}
	for text, want := range map[string]string{
		"a\x00b": "ab", "\xff": "\uFFFD", "é": "é",
	} {
		if got := clean(text, 0); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := clean("aé", 2); got != "a" {
		t.Errorf("cut to %q", got)
	}
}

func TestAnAnswerThatIsTooLargeEndsItsRunAndIsToldByItsSize(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	agent := unique("agent")
	var asked atomic.Int32
	delegate := Tool{Name: "delegate", Delegate: func(*ToolCall) (*runlanev1.StartChildRun, error) {
		return &runlanev1.StartChildRun{Content: Text(strings.Repeat("x", 9<<20))}, nil
	}}
	work(t, client, Agent{Name: agent, Tools: []Tool{delegate}, Model: ModelFunc(
		func(_ context.Context, turn *Turn) (*Reply, error) {
			asked.Add(1)
			call := &Reply{Content: []*runlanev1.Block{ToolUseBlock("c", "delegate", "{}")}}
			switch turn.Last() {
			case "4 MiB":
				return Say(strings.Repeat("x", 4<<20)), nil
			case "20 MiB":
				return Say(strings.Repeat("x", 20<<20)), nil
			case "9 MiB of JSON":
				return &Reply{OutputJSON: `"` + strings.Repeat("x", 9<<20) + `"`}, nil
			case "257 blocks":
				return &Reply{Content: slices.Repeat(Text("x"), 257)}, nil
			case "9 MiB for a child run":
				return call, nil
			}
			return Say(turn.Last()), nil
		})})
	for input, want := range map[string]string{
		"4 MiB":         "MESSAGE_TOO_LARGE: content of 4194309 bytes is over the limit of 3145728 bytes",
		"20 MiB":        "MESSAGE_TOO_LARGE: content of 20971525 bytes is over the limit of 3145728 bytes",
		"9 MiB of JSON": "MESSAGE_TOO_LARGE: a request of ",
		"257 blocks":    "FIELD_INVALID",
	} {
		asked.Store(0)
		manager := NewSessionManager(client, unique("s"), WithAgent(agent))
		result := must[*RunResult](t)(manager.Run(ctx, Start, Text(input)))
		failure := result.Run.GetOutcome().GetFailure()
		if failure.GetReason() != runlanev1.RunFailure_REASON_EXECUTOR_ERROR ||
			!strings.HasPrefix(failure.GetMessage(), want) || asked.Load() != 1 {
			t.Errorf("%s: asked %d times: %v", input, asked.Load(), failure)
		}
	}
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	result := must[*RunResult](t)(manager.Run(ctx, Start, Text("9 MiB for a child run")))
	if result.Text() != "the child run could not be started: MESSAGE_TOO_LARGE" {
		t.Errorf("a child run that is too large: %q, %v", result.Text(), result.Run.Outcome)
	}
}

// A countingContext counts what waits for its end.
type countingContext struct {
	context.Context
	hooks *atomic.Int32
}

// Value hides what it is made of, or that would be asked instead.
func (countingContext) Value(any) any { return nil }

func (c countingContext) AfterFunc(f func()) func() bool {
	c.hooks.Add(1)
	stop := context.AfterFunc(c.Context, f)
	return func() bool { c.hooks.Add(-1); return stop() }
}

func TestALeaseThatIsOverHangsOnNothing(t *testing.T) {
	var hooks atomic.Int32
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client := serveFake(t, &fakeService{})
	leased := &runlanev1.LeasedActivation{Fence: &runlanev1.Fence{}}
	for range 3 {
		l := newLease(countingContext{ctx, &hooks}, client, leased, time.Minute, slog.Default())
		if hooks.Load() != 1 {
			t.Fatalf("%d hooks while it lasts", hooks.Load())
		}
		l.letGo()
		if hooks.Load() != 0 {
			t.Fatalf("%d hooks after it", hooks.Load())
		}
	}
}
