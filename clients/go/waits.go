package runlane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	// One WaitRun waits this long; a wait that lasts longer is made of several.
	waitEach = 60 * time.Second
	// Between looks at an id that is reserved in a session that the caller did not name.
	lookEach = time.Second
)

// What a wait for a stop looks at a run again for.
var stopTypes = []runlanev1.Event_Type{
	runlanev1.Event_TYPE_RUN_WAITING,
	runlanev1.Event_TYPE_RUN_PAUSED,
	runlanev1.Event_TYPE_RUN_TERMINAL,
	runlanev1.Event_TYPE_INTERACTION_OPENED,
	runlanev1.Event_TYPE_SUBMISSION_MOVED,
	runlanev1.Event_TYPE_SUBMISSION_FAILED,
	runlanev1.Event_TYPE_SUBMISSION_WITHDRAWN,
}

// A RunResult is what a run came to.
type RunResult struct {
	// Run is the run.
	Run *runlanev1.Run
	// Output is the message that is its answer; nil where there is none.
	Output *runlanev1.Message
	// Interaction is what it waits for; only of a run that does.
	Interaction *runlanev1.Interaction
}

// Text returns the text of the answer; empty without one.
func (r *RunResult) Text() string { return TextOf(r.Output.GetContent()) }

// Completed tells whether the run has ended COMPLETED.
func (r *RunResult) Completed() bool {
	return r.Run.GetOutcome().GetStopReason() == runlanev1.Run_STOP_REASON_COMPLETED
}

// WaitRun waits until a run has ended; a reserved run id is waited for too. The context bounds
// it. sessionID, where it is given, is checked.
func (c *Client) WaitRun(ctx context.Context, runID, sessionID string) (*RunResult, error) {
	for {
		answer, err := c.waitCall(ctx, runID, sessionID, waitEach)
		if err != nil {
			return nil, err
		}
		if answer.GetRun().GetPhase() == runlanev1.Run_PHASE_TERMINAL {
			return &RunResult{Run: answer.Run, Output: answer.Output}, nil
		}
	}
}

// waitCall waits once.
func (c *Client) waitCall(
	ctx context.Context, runID, sessionID string, wait time.Duration,
) (*runlanev1.WaitRunResponse, error) {
	// The service answers a wait before the deadline of its call; near the caller's it would do
	// so again and again.
	return c.History.WaitRun(unbounded{ctx}, &runlanev1.WaitRunRequest{
		RunId: runID, SessionId: sessionID, WaitDuration: durationpb.New(wait),
		IncludeOutput: true,
	})
}

// unbounded ends as its context does, and tells no deadline.
type unbounded struct{ context.Context }

func (unbounded) Deadline() (time.Time, bool) { return time.Time{}, false }

func (c *Client) waitStopped(ctx context.Context, runID, sessionID string) (*RunResult, error) {
	var wait time.Duration
	for {
		answer, err := c.waitCall(ctx, runID, sessionID, wait)
		if err != nil {
			return nil, err
		}
		if answer.GetRun().GetPhase() == runlanev1.Run_PHASE_TERMINAL {
			return &RunResult{Run: answer.Run, Output: answer.Output}, nil
		}
		if sessionID == "" {
			sessionID = answer.GetRun().GetSessionId()
		}
		if sessionID == "" {
			wait = lookEach
			continue
		}
		// One read tells the run, what it waits for, and where to watch it from.
		state, err := c.liveState(ctx, sessionID, 0)
		if err != nil {
			return nil, err
		}
		found, again, err := c.stopped(ctx, state, runID, answer.Run != nil)
		if found != nil || err != nil {
			return found, err
		}
		if again {
			continue
		}
		if err := c.watchStop(ctx, sessionID, runID, state.Sequence); err != nil {
			return nil, err
		}
	}
}

// stopped reads from a live state whether a run has stopped; again: look at once, since it moved
// on between two reads.
func (c *Client) stopped(
	ctx context.Context, state *runlanev1.LiveState, runID string, exists bool,
) (found *RunResult, again bool, err error) {
	run := state.GetRun()
	if run.GetRunId() != runID {
		return nil, exists, nil
	}
	for _, asked := range state.OpenInteractions {
		if asked.RunId != runID {
			continue
		}
		question, err := c.wholeQuestion(ctx, asked)
		if errors.Is(err, InteractionNotFound) {
			return nil, true, nil
		}
		if err != nil {
			return nil, false, err
		}
		return &RunResult{Run: run, Interaction: question}, false, nil
	}
	ending := run.EndingCause != runlanev1.Run_STOP_REASON_UNSPECIFIED
	// One that waits for child runs goes on: they do.
	if ending || run.WaitingChildren != nil || run.Phase == runlanev1.Run_PHASE_ACTIVE {
		return nil, false, nil
	}
	return &RunResult{Run: run}, false, nil
}

func (c *Client) watchStop(ctx context.Context, sessionID, runID string, after int64) error {
	stream := c.Events(ctx, sessionID, After(after), OfRuns(runID), OfTypes(stopTypes...))
	defer stream.Close()
	if _, err := stream.Next(); err != nil && err != io.EOF {
		return err
	}
	return nil
}

func (c *Client) liveState(
	ctx context.Context, sessionID string, messages int32,
) (*runlanev1.LiveState, error) {
	answer, err := c.Sessions.GetLiveState(ctx, &runlanev1.GetLiveStateRequest{
		SessionId: sessionID, MessageLimit: proto.Int32(messages),
	})
	return answer.GetLiveState(), err
}

// wholeQuestion reads a question whose prompt was too long for the live state; it fails with
// InteractionNotFound where that was settled meanwhile.
func (c *Client) wholeQuestion(
	ctx context.Context, asked *runlanev1.Interaction,
) (*runlanev1.Interaction, error) {
	if asked.Prompt != nil {
		return asked, nil
	}
	open := NewSessionHistory(c).Interactions(ctx, &runlanev1.ListInteractionsRequest{
		SessionId: asked.SessionId, PageSize: 1000,
	})
	for found, err := range open {
		if err != nil {
			return nil, err
		}
		if found.InteractionId == asked.InteractionId {
			return found, nil
		}
	}
	return nil, notFound(InteractionNotFound, "interaction %s is not open", asked.InteractionId)
}

// notFound makes the error where the client itself looked and found none.
func notFound(reason Reason, format string, arguments ...any) error {
	return &Error{Reason: reason, Code: codes.NotFound, Message: fmt.Sprintf(format, arguments...)}
}
