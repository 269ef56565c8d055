package runlane

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// A Mode says what is to happen with an input while a run is live.
type Mode = runlanev1.Submission_Mode

// The modes.
const (
	// Start starts a run in an idle session; SessionBusy while one is live.
	Start = runlanev1.Submission_MODE_START
	// Auto starts a run, or steers the live one.
	Auto = runlanev1.Submission_MODE_AUTO
	// Queue starts a run, or queues one behind the live one.
	Queue = runlanev1.Submission_MODE_QUEUE
	// Steer gives the live run another input; SessionIdle without one.
	Steer = runlanev1.Submission_MODE_STEER
	// FollowUp queues a run behind the live one; SessionIdle without one.
	FollowUp = runlanev1.Submission_MODE_FOLLOW_UP
	// Replace cancels the live run and runs next.
	Replace = runlanev1.Submission_MODE_REPLACE
)

// Inputs that are remembered as queued before it is looked which of them still are.
const queuedRoom = 128

// A SessionManager works on one session, which it makes on first use. Several managers, in one
// or many processes, may work on the same session at once: all state is the server's. Safe to
// share.
type SessionManager struct {
	client    *Client
	sessionID string
	agent     string
	options   *runlanev1.RunOptions

	made    *onceTrue
	mu      sync.Mutex
	closed  bool
	streams map[*EventStream]struct{}
	// Inputs that were pending when they were taken, for CloseAndCancel.
	queued     map[string]struct{}
	queuedRoom int
	submitting sync.WaitGroup
}

// A ManagerOption changes how a [SessionManager] is made.
type ManagerOption func(*SessionManager)

// WithAgent sets the agent of the runs that the manager starts, and the default agent of the
// session where it is made here.
func WithAgent(name string) ManagerOption { return func(m *SessionManager) { m.agent = name } }

// WithDefaultOptions sets the options of the runs that the manager starts, where a submit gives
// none.
func WithDefaultOptions(options *runlanev1.RunOptions) ManagerOption {
	return func(m *SessionManager) { m.options = options }
}

// NewSessionManager makes a manager; nothing is called yet.
func NewSessionManager(
	client *Client, sessionID string, options ...ManagerOption,
) *SessionManager {
	manager := &SessionManager{
		client: client, sessionID: sessionID, streams: map[*EventStream]struct{}{},
		made:   newOnceTrue(),
		queued: map[string]struct{}{}, queuedRoom: queuedRoom,
	}
	for _, option := range options {
		option(manager)
	}
	return manager
}

// SessionID returns the session.
func (m *SessionManager) SessionID() string { return m.sessionID }

// A SubmitOption changes a submit; any function on the request is one.
type SubmitOption func(*runlanev1.SubmitRequest)

// WithRunOptions sets the options of the run that is started.
func WithRunOptions(options *runlanev1.RunOptions) SubmitOption {
	return func(r *runlanev1.SubmitRequest) { r.RunOptions = options }
}

// WithTarget submits only if this run is the live one; with Steer, Auto and Replace alone.
func WithTarget(runID string) SubmitOption {
	return func(r *runlanev1.SubmitRequest) { r.TargetRunId = runID }
}

// OrFollowUp makes a steer that misses its run a follow-up; with Steer and Auto alone.
func OrFollowUp() SubmitOption {
	return func(r *runlanev1.SubmitRequest) {
		r.OnMiss = runlanev1.Submission_ON_MISS_FOLLOW_UP
	}
}

// WithMetadata keeps entries of the application with the message.
func WithMetadata(entries map[string]string) SubmitOption {
	return func(r *runlanev1.SubmitRequest) { r.Metadata = entries }
}

// WithRequestID makes the submit idempotent beyond its own repeats.
func WithRequestID(id string) SubmitOption {
	return func(r *runlanev1.SubmitRequest) { r.RequestId = id }
}

// Submit gives the session an input.
//
// It fails with SessionBusy, SessionIdle, SessionClosed, QueueFull, InputEmpty and others, by
// the mode.
func (m *SessionManager) Submit(
	ctx context.Context, mode Mode, content []*runlanev1.Block, options ...SubmitOption,
) (*runlanev1.SubmitResponse, error) {
	if err := m.begin(); err != nil {
		return nil, err
	}
	defer m.submitting.Done()
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	request := &runlanev1.SubmitRequest{SessionId: m.sessionID, Mode: mode, Content: content}
	for _, option := range options {
		option(request)
	}
	request.RunOptions = m.runOptions(request)
	answer, err := m.client.Sessions.Submit(ctx, request)
	if err != nil {
		return nil, err
	}
	if answer.GetSubmission().GetState() == runlanev1.Submission_STATE_PENDING {
		m.remember(ctx, answer.GetSubmission().GetSubmissionId())
	}
	return answer, nil
}

// begin counts a submit in, which CloseAndCancel waits for: so it is always known what there is
// to take back.
func (m *SessionManager) begin() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrManagerClosed
	}
	m.submitting.Add(1)
	return nil
}

func (m *SessionManager) runOptions(request *runlanev1.SubmitRequest) *runlanev1.RunOptions {
	chosen := request.RunOptions
	if request.Mode == Steer {
		// A steer has no options of its own; the service refuses what the caller gave.
		return chosen
	}
	if chosen == nil {
		chosen = m.options
	}
	if m.agent == "" || chosen.GetAgent() != "" {
		return chosen
	}
	with := &runlanev1.RunOptions{}
	if chosen != nil {
		with = proto.CloneOf(chosen)
	}
	with.Agent = m.agent
	return with
}

// remember keeps an input that is pending, and forgets, now and then, those that are no more:
// nothing tells when they settle.
func (m *SessionManager) remember(ctx context.Context, submissionID string) {
	m.mu.Lock()
	m.queued[submissionID] = struct{}{}
	full := len(m.queued) > m.queuedRoom
	known := make([]string, 0, len(m.queued))
	for id := range m.queued {
		known = append(known, id)
	}
	m.mu.Unlock()
	if !full {
		return
	}
	// The input that led here was taken: a failure is none of it, and tried again later.
	state, err := m.client.liveState(ctx, m.sessionID, 0)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		pending := map[string]bool{}
		for _, one := range state.PendingSubmissions {
			pending[one.SubmissionId] = true
		}
		for _, id := range known {
			if !pending[id] {
				delete(m.queued, id)
			}
		}
	}
	// Twice what is left: so a look costs little for each input, however many wait.
	m.queuedRoom = max(queuedRoom, 2*len(m.queued))
}

// Run gives the session an input and waits until the run that it steers or becomes has ended.
func (m *SessionManager) Run(
	ctx context.Context, mode Mode, content []*runlanev1.Block, options ...SubmitOption,
) (*RunResult, error) {
	answer, err := m.Submit(ctx, mode, content, options...)
	if err != nil {
		return nil, err
	}
	return m.Wait(ctx, answer.GetSubmission().GetRunId())
}

// Wait waits until a run has ended; a reserved run id is waited for too. The context bounds it;
// the run goes on either way. It fails with RunNotFound, and with SubmissionSettled where the
// id was reserved and its submission failed or was withdrawn.
func (m *SessionManager) Wait(ctx context.Context, runID string) (*RunResult, error) {
	if err := m.open(); err != nil {
		return nil, err
	}
	return m.client.WaitRun(ctx, runID, m.sessionID)
}

// WaitStopped waits as Wait does, and returns also where the run, or a child run of it, waits
// for an answer, or it was paused.
func (m *SessionManager) WaitStopped(ctx context.Context, runID string) (*RunResult, error) {
	if err := m.open(); err != nil {
		return nil, err
	}
	return m.client.waitStopped(ctx, runID, m.sessionID)
}

// LiveState reads the session's live state: run, pending input, newest messages, commands.
// messages is how many of the newest messages: 0 to 200.
func (m *SessionManager) LiveState(
	ctx context.Context, messages int32,
) (*runlanev1.LiveState, error) {
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	return m.client.liveState(ctx, m.sessionID, messages)
}

// Interrupt asks for the live run to be cancelled; next runs stay queued. With a run id only
// that run. wait is how long to wait for its end: 0 to 300 s.
func (m *SessionManager) Interrupt(
	ctx context.Context, runID, reason string, wait time.Duration,
) (*runlanev1.InterruptRunResponse, error) {
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	return m.client.Sessions.InterruptRun(ctx, &runlanev1.InterruptRunRequest{
		SessionId: m.sessionID, RunId: runID, Reason: reason, WaitDuration: durationpb.New(wait),
	})
}

// Withdraw takes back a pending input.
func (m *SessionManager) Withdraw(
	ctx context.Context, submissionID string,
) (*runlanev1.WithdrawSubmissionResponse, error) {
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	return m.client.Sessions.WithdrawSubmission(ctx, &runlanev1.WithdrawSubmissionRequest{
		SessionId: m.sessionID, SubmissionId: submissionID,
	})
}

// Events streams the session's events, from where it stands when this is called, or as the
// options say: everything that is done after the call is seen. Each call makes a reader of its
// own, which lives no longer than the context and the manager.
func (m *SessionManager) Events(
	ctx context.Context, options ...EventOption,
) (*EventStream, error) {
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	stream := m.client.Events(ctx, m.sessionID, options...)
	if stream.request.Start == nil {
		state, err := m.client.liveState(ctx, m.sessionID, 0)
		if err != nil {
			stream.Close()
			return nil, err
		}
		stream.received, stream.yielded = state.Sequence, state.Sequence
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		stream.Close()
		return nil, ErrManagerClosed
	}
	m.streams[stream] = struct{}{}
	context.AfterFunc(stream.ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.streams, stream)
	})
	return stream, nil
}

// Close detaches this manager: its streams end and it takes no more calls. The session, its run
// and what is queued stay as they are. Idempotent.
func (m *SessionManager) Close() {
	m.mu.Lock()
	m.closed = true
	open := make([]*EventStream, 0, len(m.streams))
	for stream := range m.streams {
		open = append(open, stream)
	}
	m.mu.Unlock()
	for _, stream := range open {
		stream.Close()
	}
}

// CloseAndCancel closes, withdraws what this manager queued, interrupts the session's live run,
// whoever started it, and returns when that has ended. After an error it can be called again,
// and goes on where it failed.
func (m *SessionManager) CloseAndCancel(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	defer m.Close()
	if err := waitFor(ctx, &m.submitting); err != nil {
		return err
	}
	m.mu.Lock()
	queued := make([]string, 0, len(m.queued))
	for id := range m.queued {
		queued = append(queued, id)
	}
	m.mu.Unlock()
	for _, id := range queued {
		_, err := m.client.Sessions.WithdrawSubmission(ctx, &runlanev1.WithdrawSubmissionRequest{
			SessionId: m.sessionID, SubmissionId: id,
		})
		// Delivered, failed, or gone with its session: then there is nothing to take back.
		if err != nil && !anyOf(err, SubmissionSettled, SubmissionNotFound) {
			return err
		}
		m.mu.Lock()
		delete(m.queued, id)
		m.mu.Unlock()
	}
	asked, err := m.client.Sessions.InterruptRun(ctx, &runlanev1.InterruptRunRequest{
		SessionId: m.sessionID, Reason: "the session manager was closed",
	})
	if err == nil && !asked.Settled {
		_, err = m.client.WaitRun(ctx, asked.GetRun().GetRunId(), "")
	}
	if anyOf(err, SessionIdle, SessionNotFound, RunNotFound) {
		// Nothing runs, or it was never begun, or it was deleted meanwhile.
		return nil
	}
	return err
}

func (m *SessionManager) open() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrManagerClosed
	}
	return nil
}

// ready makes the session on first use.
func (m *SessionManager) ready(ctx context.Context) error {
	if err := m.open(); err != nil {
		return err
	}
	return m.made.do(ctx, func() error {
		_, err := m.client.Sessions.CreateSession(ctx, &runlanev1.CreateSessionRequest{
			SessionId: m.sessionID, DefaultAgent: m.agent,
			IfExists: runlanev1.CreateSessionRequest_IF_EXISTS_RETURN,
		})
		return err
	})
}

// A onceTrue does something until it has succeeded once. Who waits for another to do it does so
// no longer than its own context.
type onceTrue struct {
	turn chan struct{}
	done bool
}

func newOnceTrue() *onceTrue { return &onceTrue{turn: make(chan struct{}, 1)} }

func (o *onceTrue) do(ctx context.Context, work func() error) error {
	select {
	case o.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-o.turn }()
	if o.done {
		return nil
	}
	err := work()
	o.done = err == nil
	return err
}

// waitFor waits for all of a group, no longer than the context.
func waitFor(ctx context.Context, group *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() { defer close(done); group.Wait() }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func anyOf(err error, reasons ...Reason) bool {
	var told *Error
	if !errors.As(err, &told) {
		return false
	}
	for _, reason := range reasons {
		if told.Reason == reason {
			return true
		}
	}
	return false
}
