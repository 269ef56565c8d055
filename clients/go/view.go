package runlane

import (
	"context"
	"io"
	"iter"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// A View is a session as it stands, ready to draw. Each is its own: it does not change.
type View struct {
	// Session is its record.
	Session *runlanev1.Session
	// Run is the live run; nil while the session is idle.
	Run *runlanev1.Run
	// Messages are the newest committed messages, ascending.
	Messages []*runlanev1.Message
	// Partials is what a model is writing now, block by block. It is no history: the message
	// that replaces it comes, or it goes.
	Partials []Partial
	// ToolCalls are the calls of the live run that have no result, by place in their batch.
	ToolCalls []*runlanev1.ToolCall
	// Interactions are the questions that wait for an answer.
	Interactions []*runlanev1.Interaction
	// Pending are the inputs that wait, steers first, in the order of their delivery.
	Pending []*runlanev1.Submission
	// AllowedCommands is what the session would accept.
	AllowedCommands []runlanev1.Command
	// WaitingForExecutor is true while nobody polls for the agent of the live run.
	WaitingForExecutor bool
	// LastEnd is the newest end of a run that was seen; nil before one was.
	LastEnd *runlanev1.Event
	// Deleted is true where the session was deleted; nothing follows.
	Deleted bool
	// Sequence is up to where events are in it.
	Sequence int64
}

// A Partial is a block of an answer that a model is writing.
type Partial struct {
	// RunID, Step and ModelStreamID tell whose.
	RunID         string
	Step          int32
	ModelStreamID string
	// Block is its place in the answer, from 0; Kind what it is.
	Block int32
	Kind  runlanev1.Delta_Kind
	// Text is what there is so far; Done tells that it is all.
	Text string
	Done bool
}

// A ViewOption changes what a view holds.
type ViewOption func(*viewFold)

// WithViewMessages sets how many of the newest messages a view holds: 1 to 200. Default: 100.
// They take 16 MiB at most, but the newest is always there.
func WithViewMessages(count int) ViewOption {
	return func(f *viewFold) { f.room = min(max(count, 1), 200) }
}

// Views yields the session as it stands, and again after each change: live state, events and
// deltas folded into one. What comes meanwhile is folded before the next is made, so a slow
// reader sees fewer of them and costs no more memory. It ends where the session is deleted, with
// the context, or with the error that ended the stream.
func (m *SessionManager) Views(
	ctx context.Context, options ...ViewOption,
) iter.Seq2[*View, error] {
	return func(yield func(*View, error) bool) {
		fold := newViewFold(options...)
		if err := m.foldAll(ctx, fold, yield); err != nil {
			yield(nil, err)
		}
	}
}

func (m *SessionManager) foldAll(
	ctx context.Context, fold *viewFold, yield func(*View, error) bool,
) error {
	state, err := m.LiveState(ctx, int32(fold.room))
	if err != nil {
		return err
	}
	fold.begin(state)
	if err := m.foldOpenCalls(ctx, fold); err != nil {
		return err
	}
	stream, err := m.Events(
		ctx, After(state.Sequence), WithMessages(), WithDeltas(), WithControl())
	if err != nil {
		return err
	}
	defer stream.Close()
	for yield(fold.view(), nil) {
		for fold.changed = false; !fold.changed; {
			item, err := stream.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return err
			}
			fold.take(item)
			for len(stream.buffer) > 0 {
				if item, err = stream.Next(); err == nil {
					fold.take(item)
				}
			}
			fold.sequence = max(fold.sequence, stream.Sequence())
			if err := m.refresh(ctx, fold); err != nil {
				return err
			}
		}
	}
	return nil
}

// foldOpenCalls reads the calls that were open before the view began.
func (m *SessionManager) foldOpenCalls(ctx context.Context, fold *viewFold) error {
	if fold.run.GetPosition() != runlanev1.Run_POSITION_TOOL_BATCH {
		return nil
	}
	calls := NewSessionHistory(m.client).ToolCalls(ctx, &runlanev1.ListToolCallsRequest{
		RunId: fold.run.RunId, PageSize: 1000,
	})
	for call, err := range calls {
		if err != nil {
			return err
		}
		if isOpenCall(call) {
			fold.calls = append(fold.calls, call)
		}
	}
	return nil
}

// refresh reads the live state again where events told less than is drawn.
func (m *SessionManager) refresh(ctx context.Context, fold *viewFold) error {
	if !fold.stale || fold.deleted {
		return nil
	}
	state, err := m.client.liveState(ctx, m.sessionID, 0)
	if anyOf(err, SessionNotFound) {
		// It was deleted; the event of that is on its way.
		return nil
	}
	if err != nil {
		return err
	}
	fold.know(state)
	return nil
}

func isOpenCall(call *runlanev1.ToolCall) bool {
	return call.State == runlanev1.ToolCall_STATE_PREPARED ||
		call.State == runlanev1.ToolCall_STATE_CLAIMED
}

// view returns what was folded, as a copy.
func (f *viewFold) view() *View {
	view := &View{
		Session: f.session, Run: f.run, Messages: slices.Clone(f.messages),
		ToolCalls: slices.Clone(f.calls), Interactions: f.interactions, Pending: f.pending,
		AllowedCommands: f.allowed, WaitingForExecutor: f.waiting, LastEnd: f.lastEnd,
		Deleted: f.deleted, Sequence: f.sequence,
	}
	for _, block := range f.partials {
		view.Partials = append(view.Partials, block.partial())
	}
	return view
}

// argumentsOf finds the tool use that a call comes from, for its arguments.
func (f *viewFold) argumentsOf(runID, id string) string {
	for place := len(f.messages) - 1; place >= 0; place-- {
		message := f.messages[place]
		if message.RunId != runID {
			continue
		}
		for _, use := range toolUses(message) {
			if use.ToolCallId == id {
				return use.GetArgumentsJson()
			}
		}
	}
	return ""
}

func withControl(run *runlanev1.Run, control *runlanev1.Control) *runlanev1.Run {
	changed := proto.CloneOf(run)
	changed.Phase = control.Phase
	changed.Activation = control.Activation
	changed.PauseRequested = control.PauseRequested
	return changed
}
