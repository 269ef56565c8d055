package runlane

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	viewMessages = 100
	viewBytes    = 16 << 20
	// What one answer may hold; a partial does not grow beyond it.
	partialBytes  = 3 << 20
	partialBlocks = 256
	// Runs whose ends are remembered, against pieces that come late.
	endedRuns = 16
)

// A viewFold folds a live state and what comes after it.
type viewFold struct {
	room int

	session      *runlanev1.Session
	run          *runlanev1.Run
	interactions []*runlanev1.Interaction
	pending      []*runlanev1.Submission
	allowed      []runlanev1.Command
	waiting      bool
	// As of when the above is true.
	knownAt int64

	messages []*runlanev1.Message
	bytes    int
	partials []*partialBlock
	// The run whose steps are counted, and the last of them that has its message.
	writing   string
	committed int32
	ended     []string
	calls     []*runlanev1.ToolCall
	lastEnd   *runlanev1.Event
	deleted   bool
	sequence  int64
	// stale: the live state has to be read again. changed: there is something to draw.
	stale, changed bool
}

// A partialBlock is a block on its way; text is what there is up to its revision.
type partialBlock struct {
	delta    *runlanev1.Delta
	text     strings.Builder
	revision int32
	done     bool
}

func (p *partialBlock) partial() Partial {
	return Partial{
		RunID: p.delta.RunId, Step: p.delta.Step, ModelStreamID: p.delta.ModelStreamId,
		Block: p.delta.BlockIndex, Kind: p.delta.Kind, Text: p.text.String(), Done: p.done,
	}
}

func newViewFold(options ...ViewOption) *viewFold {
	fold := &viewFold{room: viewMessages}
	for _, option := range options {
		option(fold)
	}
	return fold
}

// begin takes the state that the view starts with.
func (f *viewFold) begin(state *runlanev1.LiveState) {
	f.know(state)
	f.sequence = state.Sequence
	for _, message := range state.Messages {
		f.append(message)
	}
}

// know takes what a live state says, but for messages, which come by events.
func (f *viewFold) know(state *runlanev1.LiveState) {
	f.session, f.run, f.interactions = state.Session, state.Run, state.OpenInteractions
	f.pending, f.allowed = state.PendingSubmissions, state.AllowedCommands
	f.waiting, f.knownAt = state.WaitingForExecutor, state.Sequence
	f.stale, f.changed = false, true
	if run := state.Run; run != nil {
		f.wrote(run.RunId, run.GetUsage().GetModelStepsCommitted())
	}
}

// wrote notes that a step of a run has its message: its pieces are of no use any more.
func (f *viewFold) wrote(runID string, step int32) {
	if f.writing != runID {
		f.writing, f.committed = runID, 0
	}
	f.committed = max(f.committed, step)
	f.dropPartials(func(delta *runlanev1.Delta) bool {
		return delta.RunId == runID && delta.Step <= f.committed
	})
}

func (f *viewFold) take(item Item) {
	switch {
	case item.Event != nil:
		f.event(item.Event)
	case item.Delta != nil:
		f.delta(item.Delta)
	case item.Control != nil:
		f.control(item.Control)
	}
}

func (f *viewFold) event(event *runlanev1.Event) {
	f.sequence, f.changed = event.Sequence, true
	runID := event.RunId
	switch body := event.Body.(type) {
	case *runlanev1.Event_MessageAppended:
		f.append(event.Message)
		if body.MessageAppended.ModelStreamId != "" {
			f.wrote(runID, body.MessageAppended.Step)
		}
		return
	case *runlanev1.Event_ModelStepReserved:
		f.dropPartials(func(delta *runlanev1.Delta) bool {
			return delta.RunId == runID && delta.ModelStreamId != body.ModelStepReserved.ModelStreamId
		})
		return
	case *runlanev1.Event_ModelStepCommitted, *runlanev1.Event_ActivationQueued,
		*runlanev1.Event_ActivationLeased:
		return
	case *runlanev1.Event_ToolCallPrepared:
		f.prepared(runID, body.ToolCallPrepared)
		return
	case *runlanev1.Event_ToolCallClaimed:
		f.setCall(body.ToolCallClaimed.ToolCallId, runlanev1.ToolCall_STATE_CLAIMED)
		return
	case *runlanev1.Event_ToolCallCommitted:
		f.setCall(body.ToolCallCommitted.ToolCallId, runlanev1.ToolCall_STATE_COMMITTED)
		return
	case *runlanev1.Event_ToolCallOutcomeUnknown:
		f.setCall(body.ToolCallOutcomeUnknown.ToolCallId, runlanev1.ToolCall_STATE_OUTCOME_UNKNOWN)
		return
	case *runlanev1.Event_ToolCallCancelled:
		f.setCall(body.ToolCallCancelled.ToolCallId, runlanev1.ToolCall_STATE_CANCELLED)
		return
	case *runlanev1.Event_ActivationEnded, *runlanev1.Event_ActivationAbandoned:
		f.dropPartials(func(delta *runlanev1.Delta) bool { return delta.RunId == runID })
		return
	case *runlanev1.Event_RunTerminal:
		f.end(event)
	case *runlanev1.Event_SessionDeleted:
		f.deleted, f.run, f.partials, f.calls = true, nil, nil, nil
		f.interactions, f.pending, f.allowed = nil, nil, nil
	case nil:
		if event.MaySkip {
			return
		}
	}
	if event.Sequence > f.knownAt {
		f.stale = true
	}
}

func (f *viewFold) end(event *runlanev1.Event) {
	f.lastEnd = event
	f.dropPartials(func(delta *runlanev1.Delta) bool { return delta.RunId == event.RunId })
	f.calls = slices.DeleteFunc(f.calls, func(call *runlanev1.ToolCall) bool {
		return call.RunId == event.RunId
	})
	f.ended = append(f.ended, event.RunId)
	f.ended = f.ended[max(0, len(f.ended)-endedRuns):]
}

// append takes a message that is newer than what there is, and lets old ones go.
func (f *viewFold) append(message *runlanev1.Message) {
	count := len(f.messages)
	if message == nil || count > 0 && message.Number <= f.messages[count-1].Number {
		return
	}
	f.messages = append(f.messages, message)
	f.bytes += proto.Size(message)
	for len(f.messages) > 1 && (len(f.messages) > f.room || f.bytes > viewBytes) {
		f.bytes -= proto.Size(f.messages[0])
		// Not to keep it by what is left of the array.
		f.messages[0] = nil
		f.messages = f.messages[1:]
	}
}

func (f *viewFold) prepared(runID string, body *runlanev1.ToolCallPrepared) {
	for _, call := range f.calls {
		if call.ToolCallId == body.ToolCallId {
			f.setCall(body.ToolCallId, runlanev1.ToolCall_STATE_PREPARED)
			return
		}
	}
	f.calls = append(f.calls, &runlanev1.ToolCall{
		ToolCallId: body.ToolCallId, RunId: runID, Name: body.Name, Ordinal: body.Ordinal,
		State:         runlanev1.ToolCall_STATE_PREPARED,
		ArgumentsJson: f.argumentsOf(runID, body.ToolCallId),
	})
}

func (f *viewFold) setCall(id string, state runlanev1.ToolCall_State) {
	for place, call := range f.calls {
		if call.ToolCallId != id {
			continue
		}
		changed := proto.CloneOf(call)
		changed.State = state
		if isOpenCall(changed) {
			f.calls[place] = changed
		} else {
			f.calls = slices.Delete(f.calls, place, place+1)
		}
		return
	}
}

func (f *viewFold) control(control *runlanev1.Control) {
	if control.AsOfSequence < f.knownAt {
		return
	}
	f.changed = true
	f.allowed, f.waiting = control.AllowedCommands, control.WaitingForExecutor
	switch {
	case control.RunId == "":
		f.run = nil
	case f.run.GetRunId() == control.RunId:
		f.run = withControl(f.run, control)
	}
}

func (f *viewFold) dropPartials(gone func(*runlanev1.Delta) bool) {
	f.partials = slices.DeleteFunc(f.partials, func(block *partialBlock) bool {
		return gone(block.delta)
	})
}

// delta takes a piece; one that comes after the message that replaces it, or does not fit what
// there is, is dropped.
func (f *viewFold) delta(delta *runlanev1.Delta) {
	if slices.Contains(f.ended, delta.RunId) ||
		f.writing == delta.RunId && delta.Step <= f.committed ||
		delta.BlockIndex < 0 || delta.BlockIndex >= partialBlocks {
		return
	}
	// One answer is written at a time: a newer request replaces the one before it.
	f.dropPartials(func(other *runlanev1.Delta) bool {
		return other.ModelStreamId != delta.ModelStreamId ||
			other.ActivationId != delta.ActivationId
	})
	block := f.partial(delta)
	switch piece := delta.Piece.(type) {
	case *runlanev1.Delta_SnapshotText:
		if delta.Revision < block.revision {
			return
		}
		block.text.Reset()
		block.grow(piece.SnapshotText)
	case *runlanev1.Delta_AppendText:
		if delta.BaseRevision != block.revision {
			return
		}
		block.grow(piece.AppendText)
	case *runlanev1.Delta_BlockDone:
		if delta.BaseRevision != block.revision {
			return
		}
		block.done = piece.BlockDone
	default:
		return
	}
	block.revision = max(block.revision, delta.Revision)
	f.changed = true
}

func (p *partialBlock) grow(text string) {
	if p.text.Len()+len(text) <= partialBytes {
		p.text.WriteString(text)
	}
}

// partial finds a block, or makes it in its place.
func (f *viewFold) partial(delta *runlanev1.Delta) *partialBlock {
	place, found := slices.BinarySearchFunc(f.partials, delta.BlockIndex,
		func(block *partialBlock, index int32) int { return int(block.delta.BlockIndex - index) })
	if !found {
		f.partials = slices.Insert(f.partials, place, &partialBlock{delta: delta})
	}
	return f.partials[place]
}
