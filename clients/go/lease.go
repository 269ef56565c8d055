package runlane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	// The first sign of life confirms the lease, which would end after 10 s otherwise.
	firstHeartbeat = 3 * time.Second
	// A server that comes back lets leases live for a full term, so an outage ends none: only
	// its answer does. This bounds how long the work is kept for one that does not come back.
	outage = 15 * time.Minute
	// To give a run back, or to say goodbye to it, when the executor stops.
	parting = 5 * time.Second
	// What cancelled work may take to stop before its run is settled without it.
	stopGrace = 5 * time.Second
	// Limits of the service. What is beyond them is refused here: the transport's own refusal
	// has no reason, and what looks like a loss of the connection would have the model asked
	// again.
	contentBytes = 3 << 20
	requestBytes = 8 << 20
)

// Why work has to stop; the causes of a lease's contexts.
var (
	errLost            = errors.New("the lease is lost")
	errCancelRequested = errors.New("cancellation of the run was requested")
	errStopping        = errors.New("the executor stops")
)

// A lease is the right to advance a run, for as long as it lasts.
type lease struct {
	client   *Client
	fence    *runlanev1.Fence
	duration time.Duration
	log      *slog.Logger
	// stop ends where the executor does.
	stop context.Context
	// work ends where models and tools have to stop, with one of the causes above.
	work context.Context
	tell context.CancelCauseFunc
	// unhook lets go of stop, which may live for long.
	unhook func() bool
	// calls is what commits are made with: it outlives the work by a parting.
	calls    context.Context
	endCalls context.CancelFunc
	// A commit has ended the activation.
	over bool
	// The fence is gone; cancellation of the run, or a pause, was requested.
	lost, asked, pausing atomic.Bool
}

// newLease begins to send signs of life and to listen to what the server asks, until letGo.
func newLease(
	stop context.Context, client *Client, leased *runlanev1.LeasedActivation,
	duration time.Duration, log *slog.Logger,
) *lease {
	fence := leased.Fence
	l := &lease{
		client: client, fence: fence, duration: duration, stop: stop,
		log: log.With("session_id", fence.SessionId, "run_id", fence.RunId,
			"activation_id", fence.ActivationId),
	}
	l.work, l.tell = context.WithCancelCause(context.Background())
	l.calls, l.endCalls = context.WithCancel(context.Background())
	l.heed(leased.Control)
	l.unhook = context.AfterFunc(stop, func() {
		l.tell(errStopping)
		// What is on its way is let through, and the parting too.
		last := time.AfterFunc(2*parting, l.endCalls)
		context.AfterFunc(l.calls, func() { last.Stop() })
	})
	go l.beat()
	go l.watch()
	return l
}

func (l *lease) letGo() {
	l.unhook()
	l.tell(errLost)
	l.endCalls()
}

// check tells why the work has to stop; nil where it goes on.
func (l *lease) check() error {
	if l.lost.Load() {
		return errLost
	}
	if l.asked.Load() {
		return errCancelRequested
	}
	return context.Cause(l.work)
}

func (l *lease) heed(control *runlanev1.ActivationControl) {
	l.pausing.Store(control.GetPauseRequested())
	if control.GetEnded() {
		l.lose()
	}
	if control.GetCancelRequested() {
		l.asked.Store(true)
		l.tell(errCancelRequested)
	}
}

func (l *lease) lose() {
	l.lost.Store(true)
	l.tell(errLost)
}

// taken is told of what was committed.
type taken func(operations []*runlanev1.Operation, answer *runlanev1.CommitResponse)

// outcome is how a commit ends an activation; a function on the request, nil for none.
type outcome func(*runlanev1.CommitRequest)

func completed(outputJSON string) outcome {
	return finish(&runlanev1.Finish{Outcome: &runlanev1.Finish_Completed{
		Completed: &runlanev1.Completed{OutputJson: outputJSON},
	}})
}

func cancelled() outcome {
	return finish(&runlanev1.Finish{Outcome: &runlanev1.Finish_Cancelled{
		Cancelled: &runlanev1.Cancelled{},
	}})
}

func failed(reason runlanev1.RunFailure_Reason, message string, retryable bool) outcome {
	return finish(&runlanev1.Finish{Outcome: &runlanev1.Finish_Failed{Failed: &runlanev1.RunFailure{
		Reason: reason, Message: clean(message, 4096), Retryable: retryable,
	}}})
}

func finish(how *runlanev1.Finish) outcome {
	return func(r *runlanev1.CommitRequest) {
		r.Outcome = &runlanev1.CommitRequest_Finish{Finish: how}
	}
}

func suspend(wait *runlanev1.Suspend) outcome {
	return func(r *runlanev1.CommitRequest) {
		r.Outcome = &runlanev1.CommitRequest_Suspend{Suspend: wait}
	}
}

func released(r *runlanev1.CommitRequest) {
	r.Outcome = &runlanev1.CommitRequest_Release{
		Release: &runlanev1.Release{Reason: "the executor stops"},
	}
}

// commit commits in one transaction, all or none. It is made again, with the same request id,
// for as long as an outage may last.
func (l *lease) commit(
	operations []*runlanev1.Operation, end outcome, limit time.Duration, told taken,
) (*runlanev1.CommitResponse, error) {
	request := &runlanev1.CommitRequest{
		Fence: l.fence, Operations: operations, LeaseDuration: durationpb.New(l.duration),
	}
	if end != nil {
		end(request)
	}
	if err := checkSize(request); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(l.calls, limit)
	defer cancel()
	answer, err := l.client.Executors.Commit(ctx, request)
	if err != nil {
		if anyOf(err, StaleActivation, RunNotFound, SessionNotFound) {
			l.lose()
			return nil, fmt.Errorf("%w: %w", errLost, err)
		}
		return nil, err
	}
	if told != nil {
		told(operations, answer)
	}
	switch answer.GetRun().GetPhase() {
	case runlanev1.Run_PHASE_TERMINAL, runlanev1.Run_PHASE_WAITING, runlanev1.Run_PHASE_PAUSED:
		l.over = true
	}
	if answer.OutcomeApplied || answer.GetRun().GetEndingCause() != 0 {
		l.over = true
	}
	if l.over {
		return answer, nil
	}
	if answer.FenceLost {
		l.lose()
		return nil, errLost
	}
	l.heed(answer.Control)
	return answer, nil
}

// checkSize refuses what is too large, as the service does.
func checkSize(request *runlanev1.CommitRequest) error {
	for _, operation := range request.Operations {
		content := 0
		for _, block := range operation.GetCommitModelStep().GetContent() {
			content += proto.Size(block)
		}
		if content > contentBytes {
			return tooLarge("content", content, contentBytes)
		}
	}
	if whole := proto.Size(request); whole > requestBytes {
		return tooLarge("a request", whole, requestBytes)
	}
	return nil
}

func tooLarge(what string, size, limit int) error {
	return &Error{
		Reason: MessageTooLarge, Code: codes.ResourceExhausted,
		Message: fmt.Sprintf("%s of %d bytes is over the limit of %d bytes", what, size, limit),
		Metadata: map[string]string{
			"size_bytes": fmt.Sprint(size), "limit_bytes": fmt.Sprint(limit),
		},
	}
}

// commitInTurn commits together what also has its sense one by one. An operation may end the
// activation: by a pause that was asked for meanwhile, or by a budget. Then those after it are
// refused, and all with them; so they are committed one by one up to that end.
func (l *lease) commitInTurn(
	operations []*runlanev1.Operation, end outcome, told taken,
) error {
	_, err := l.commit(operations, end, outage, told)
	if !errors.Is(err, OperationInvalid) {
		return err
	}
	if len(operations) == 0 || len(operations) == 1 && end == nil {
		return err
	}
	for _, operation := range operations {
		_, err := l.commit([]*runlanev1.Operation{operation}, nil, outage, told)
		if err != nil || l.over {
			return err
		}
	}
	if end != nil {
		_, err = l.commit(nil, end, outage, told)
		return err
	}
	return nil
}

// beat sends signs of life. One odd error is no reason to stop: the work goes on, and needs its
// lease.
func (l *lease) beat() {
	wait := min(firstHeartbeat, l.duration/3)
	for {
		// Jitter, so that activations leased together do not beat together.
		if sleep(l.calls, time.Duration(float64(wait)*(0.9+0.1*rand.Float64()))) != nil {
			return
		}
		wait = l.duration / 3
		ctx, cancel := context.WithTimeout(l.calls, outage)
		answer, err := l.client.Executors.Heartbeat(ctx, &runlanev1.HeartbeatRequest{
			Fence: l.fence, LeaseDuration: durationpb.New(l.duration),
		})
		cancel()
		switch {
		case err == nil:
			l.heed(answer.Control)
		case anyOf(err, StaleActivation, RunNotFound, SessionNotFound):
			l.lose()
			return
		case l.calls.Err() != nil || errors.Is(err, ErrClientClosed):
			return
		default:
			l.log.Warn("a heartbeat failed", "error", err)
			wait = min(firstHeartbeat, wait)
		}
	}
}

// watch listens to what the server asks.
func (l *lease) watch() {
	for failures := 1; ; failures++ {
		err := reopen(l.calls, outage,
			func(ctx context.Context) (frames[runlanev1.WatchActivationResponse], error) {
				return l.client.Executors.WatchActivation(ctx, &runlanev1.WatchActivationRequest{
					Fence: proto.CloneOf(l.fence),
				})
			},
			func(frame *runlanev1.WatchActivationResponse) bool {
				l.heed(frame.Control)
				return true
			})
		switch {
		case err == nil, anyOf(err, StaleActivation, RunNotFound, SessionNotFound):
			// The activation has ended.
			l.lose()
			return
		case l.calls.Err() != nil, errors.Is(err, ErrClientClosed):
			return
		case codeOf(err) == codes.Unimplemented:
			// Heartbeats bring the same, only later.
			return
		}
		l.log.Warn("the control of an activation cannot be read", "error", err)
		if sleep(l.calls, min(firstHeartbeat*time.Duration(failures), l.duration/3)) != nil {
			return
		}
	}
}

func codeOf(err error) codes.Code {
	var lost *TransportError
	if errors.As(err, &lost) {
		return lost.Code
	}
	return codes.OK
}

// await runs some work, and stops it where the run is cancelled or the lease is lost: then the
// error is the cause of that. Work that panics has failed.
func await[T any](
	l *lease, ctx context.Context, work func(context.Context) (T, error),
) (T, error) {
	type ended struct {
		value T
		err   error
	}
	done := make(chan ended, 1)
	go func() {
		defer func() {
			if panicked := recover(); panicked != nil {
				var none T
				done <- ended{none, &panicError{panicked}}
			}
		}()
		value, err := work(ctx)
		done <- ended{value, err}
	}()
	select {
	case end := <-done:
		return end.value, end.err
	case <-ctx.Done():
	}
	select {
	case end := <-done:
		return end.value, end.err
	case <-time.After(stopGrace):
		l.log.Warn("work of a run does not stop")
		var none T
		return none, context.Cause(ctx)
	}
}

// A panicError is what a model or a tool panicked with.
type panicError struct{ value any }

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }
