package runlane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// Executors as processes of their own, which are killed: this test's program plays a scene when
// it is started with RUNLANE_TEST_SCENE. A scene says "at NAME" where it stands, and waits there
// for ever if it is told to stop there.

// effectAgent asks for one call of a tool with an effect: a line in a file.
func effectAgent(name, file string, idempotent bool, at func(context.Context, string)) Agent {
	effect := Tool{Name: "effect", Idempotent: idempotent, Run: func(
		ctx context.Context, call *ToolCall,
	) ([]*runlanev1.Block, error) {
		at(ctx, "claimed")
		if err := haveEffect(file, call, idempotent); err != nil {
			return nil, err
		}
		at(ctx, "effect")
		return Text("done"), nil
	}}
	return Agent{Name: name, Tools: []Tool{effect}, Model: ModelFunc(
		func(ctx context.Context, turn *Turn) (*Reply, error) {
			if turn.Step == 1 {
				return &Reply{Content: []*runlanev1.Block{ToolUseBlock("c", "effect", "{}")}}, nil
			}
			at(ctx, "result")
			return Say("it is " + turn.Last()), nil
		})}
}

// haveEffect writes a line. A tool that may be run again keeps to its key, as such tools do.
func haveEffect(file string, call *ToolCall, idempotent bool) error {
	if idempotent {
		key := file + "." + call.RunID + "." + call.ID
		taken, err := os.OpenFile(key, os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		if err != nil {
			return err
		}
		_ = taken.Close()
	}
	out, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	_, err = fmt.Fprintln(out, call.RunID)
	return err
}

func effects(t *testing.T, file string) int {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(data), "\n")
}

// playScene is an executor that stops where RUNLANE_TEST_SCENE says.
func playScene(scene string) int {
	client, err := New(os.Getenv("SCENE_ADDRESS"), WithAPIKey(""))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	agent := effectAgent(os.Getenv("SCENE_AGENT"), os.Getenv("SCENE_FILE"),
		os.Getenv("SCENE_IDEMPOTENT") != "", func(_ context.Context, place string) {
			fmt.Println("at", place)
			if place == scene {
				// What is written to stdin lets it go on.
				_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
			}
		})
	executor, err := NewExecutor(client, []Agent{agent}, WithLease(5*time.Second),
		WithLogger(slog.New(slog.NewTextHandler(io.Discard, nil))))
	if err == nil {
		err = executor.Run(context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// A sceneProcess is an executor that can be killed.
type sceneProcess struct {
	command *exec.Cmd
	said    *bufio.Reader
	stdin   io.WriteCloser
}

func startScene(
	t *testing.T, scene, address, agent, file string, idempotent bool,
) *sceneProcess {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), "RUNLANE_TEST_SCENE="+scene, "SCENE_ADDRESS="+address,
		"SCENE_AGENT="+agent, "SCENE_FILE="+file)
	if idempotent {
		command.Env = append(command.Env, "SCENE_IDEMPOTENT=1")
	}
	command.Stderr = os.Stderr
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	process := &sceneProcess{command, bufio.NewReader(stdout), stdin}
	t.Cleanup(process.kill)
	return process
}

func (p *sceneProcess) waitFor(t *testing.T, place string) {
	t.Helper()
	for {
		line, err := p.said.ReadString('\n')
		if err != nil {
			t.Fatalf("the scene ended before %q: %v", place, err)
		}
		if strings.TrimSpace(line) == "at "+place {
			return
		}
	}
}

func (p *sceneProcess) kill() {
	_ = p.command.Process.Signal(syscall.SIGKILL)
	_ = p.command.Wait()
}

func TestKilledExecutorsHaveNoEffectTwice(t *testing.T) {
	completed, unknown := runlanev1.Run_STOP_REASON_COMPLETED, runlanev1.Run_STOP_REASON_OUTCOME_UNKNOWN
	for _, scene := range []struct {
		place      string
		idempotent bool
		reason     runlanev1.Run_StopReason
		effects    int
	}{
		// Before the effect or after it: nobody can know, so it is never tried again.
		{"claimed", false, unknown, 0},
		{"effect", false, unknown, 1},
		{"claimed", true, completed, 1},
		{"effect", true, completed, 1},
		{"result", false, completed, 1},
	} {
		t.Run(fmt.Sprintf("%s,idempotent=%v", scene.place, scene.idempotent), func(t *testing.T) {
			t.Parallel()
			ctx := within(t)
			address := liveAddress(t)
			client := dial(t, address)
			agent, file := unique("effect"), filepath.Join(t.TempDir(), "effects")
			first := startScene(t, scene.place, address, agent, file, scene.idempotent)
			manager := NewSessionManager(client, unique("s"), WithAgent(agent))
			answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
			first.waitFor(t, scene.place)
			first.kill()
			work(t, client, effectAgent(agent, file, scene.idempotent, func(context.Context, string) {}))
			result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
			if result.Run.Outcome.StopReason != scene.reason {
				t.Errorf("it ended %v", result.Run.Outcome)
			}
			if got := effects(t, file); got != scene.effects {
				t.Errorf("%d effects", got)
			}
			if scene.reason == completed && result.Text() != "it is done" {
				t.Errorf("it said %q", result.Text())
			}
		})
	}
}

func TestAnExecutorThatSleptIsFenced(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	address := liveAddress(t)
	client := dial(t, address)
	agent, file := unique("effect"), filepath.Join(t.TempDir(), "effects")
	first := startScene(t, "result", address, agent, file, false)
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	first.waitFor(t, "result")
	_ = first.command.Process.Signal(syscall.SIGSTOP)
	work(t, client, effectAgent(agent, file, false, func(context.Context, string) {}))
	result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if !result.Completed() || result.Run.Attempt < 2 || effects(t, file) != 1 {
		t.Fatalf("attempt %d ended %v", result.Run.Attempt, result.Run.Outcome)
	}
	// It wakes up and says its own: too late. Its next run is as good as any.
	_ = first.command.Process.Signal(syscall.SIGCONT)
	_, _ = fmt.Fprintln(first.stdin)
	next := must[*RunResult](t)(manager.Run(ctx, Start, Text("again")))
	state := must[*runlanev1.LiveState](t)(manager.LiveState(ctx, 200))
	if !next.Completed() || len(state.Messages) != 8 || effects(t, file) != 2 {
		t.Fatalf("%d messages, %d effects", len(state.Messages), effects(t, file))
	}
}

func TestARestartOfTheServerLosesNoWork(t *testing.T) {
	t.Parallel()
	ctx := within(t)
	server := ownServer(t)
	client := dial(t, server.Address)
	agent, file := unique("effect"), filepath.Join(t.TempDir(), "effects")
	places, goOn := make(chan string, 100), make(chan struct{})
	work(t, client, effectAgent(agent, file, false, func(ctx context.Context, place string) {
		places <- place
		select {
		case <-goOn:
		case <-ctx.Done():
		}
	}))
	manager := NewSessionManager(client, "s", WithAgent(agent))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	for _, place := range []string{"claimed", "effect", "result"} {
		if got := <-places; got != place {
			t.Fatalf("at %s, not %s", got, place)
		}
		server.Kill()
		// What it does now finds no server, and is said again until there is one.
		goOn <- struct{}{}
		if err := server.Restart(); err != nil {
			t.Fatal(err)
		}
	}
	result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if !result.Completed() || result.Run.Attempt != 1 || effects(t, file) != 1 {
		t.Fatalf("attempt %d ended %v with %d effects", result.Run.Attempt, result.Run.Outcome, effects(t, file))
	}
}

func TestDrainFinishesWhatRunsAndTakesNoMore(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	agent := unique("agent")
	held := newGate()
	executor := work(t, client, Agent{Name: agent, Model: ModelFunc(
		func(ctx context.Context, _ *Turn) (*Reply, error) {
			return Say("finished"), held.pass(ctx)
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	<-held.begun
	drained := make(chan error, 1)
	go func() { drained <- executor.Drain(ctx) }()
	<-executor.draining
	close(held.open)
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if result.Text() != "finished" {
		t.Fatalf("it said %q", result.Text())
	}
	other := NewSessionManager(client, unique("s"), WithAgent(agent))
	waiting := must[*runlanev1.SubmitResponse](t)(other.Submit(ctx, Start, Text("go")))
	work(t, client, Agent{Name: agent, Model: ModelFunc(
		func(context.Context, *Turn) (*Reply, error) { return Say("by another"), nil })})
	result = must[*RunResult](t)(other.Wait(ctx, waiting.Submission.RunId))
	if result.Text() != "by another" {
		t.Fatalf("it said %q", result.Text())
	}
}

func TestAnExecutorThatStopsGivesItsRunsBack(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	agent := unique("agent")
	held := newGate()
	executor := must[*Executor](t)(NewExecutor(client, []Agent{{Name: agent, Model: ModelFunc(
		func(ctx context.Context, _ *Turn) (*Reply, error) { return nil, held.pass(ctx) })}}))
	stop, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- executor.Run(stop) }()
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("go")))
	<-held.begun
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("it ended with %v", err)
	}
	work(t, client, Agent{Name: agent, Model: ModelFunc(
		func(context.Context, *Turn) (*Reply, error) { return Say("by another"), nil })})
	result := must[*RunResult](t)(manager.Wait(ctx, answer.Submission.RunId))
	if result.Text() != "by another" || result.Run.Recoveries != 0 {
		t.Fatalf("it said %q after %d recoveries", result.Text(), result.Run.Recoveries)
	}
}

func TestAModelThatFailsEndsItsRun(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	agent := unique("agent")
	work(t, client, Agent{Name: agent, Model: ModelFunc(
		func(_ context.Context, turn *Turn) (*Reply, error) {
			switch turn.Last() {
			case "away":
				return nil, ModelUnavailable("nobody there")
			case "panic":
				panic("a secret")
			}
			return nil, errors.New("a secret")
		})})
	manager := NewSessionManager(client, unique("s"), WithAgent(agent))
	for input, want := range map[string]string{
		"away":  "REASON_MODEL_UNAVAILABLE nobody there true",
		"panic": "REASON_EXECUTOR_ERROR *runlane.panicError false",
		"other": "REASON_EXECUTOR_ERROR *errors.errorString false",
	} {
		result := must[*RunResult](t)(manager.Run(ctx, Start, Text(input)))
		failure := result.Run.Outcome.GetFailure()
		got := fmt.Sprintln(failure.GetReason(), failure.GetMessage(), failure.GetRetryable())
		if strings.TrimSpace(got) != want {
			t.Errorf("%s: %s", input, got)
		}
	}
}
