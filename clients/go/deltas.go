package runlane

import (
	"context"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	// What comes within this time goes out as one piece.
	deltaLinger = 50 * time.Millisecond
	// How long the end of a stream may hold up the commit that replaces it.
	deltaFlush = 250 * time.Millisecond
	// Bytes that a piece may have, and pieces of a frame.
	deltaBytes  = 128 << 10
	deltaPieces = 256
)

// A publisher publishes the deltas of one model step. Pieces are merged while an earlier one is
// on its way, so a slow connection costs watchers detail and never the model time. A failure
// ends the publishing of this step.
type publisher struct {
	lease    *lease
	streamID string
	step     int32

	mu     sync.Mutex
	blocks map[int32]*deltaBlock
	order  []int32
	begun  bool
	wake   chan struct{}
	finish chan struct{}
	done   chan struct{}
	cancel context.CancelFunc
}

type deltaBlock struct {
	kind     runlanev1.Delta_Kind
	pending  string
	revision int32
}

func newPublisher(l *lease, streamID string, step int32) *publisher {
	return &publisher{
		lease: l, streamID: streamID, step: step, blocks: map[int32]*deltaBlock{},
		wake: make(chan struct{}, 1), finish: make(chan struct{}), done: make(chan struct{}),
	}
}

// push takes a piece; returns at once.
func (p *publisher) push(block int32, kind runlanev1.Delta_Kind, text string) {
	if text == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	state, known := p.blocks[block]
	if !known {
		state = &deltaBlock{kind: kind}
		p.blocks[block] = state
		p.order = append(p.order, block)
	}
	state.pending += text
	if !p.begun {
		p.begun = true
		var ctx context.Context
		ctx, p.cancel = context.WithCancel(p.lease.calls)
		go p.run(ctx)
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// close sends what is left, for a moment at most; then nothing more is sent.
func (p *publisher) close() {
	p.mu.Lock()
	begun := p.begun
	// What comes later comes too late.
	p.begun = true
	p.mu.Unlock()
	if !begun {
		return
	}
	close(p.finish)
	select {
	case <-p.done:
	case <-time.After(deltaFlush):
	}
	p.cancel()
	<-p.done
}

func (p *publisher) run(ctx context.Context) {
	defer close(p.done)
	stream, err := p.lease.client.Executors.PublishDeltas(ctx)
	if err != nil {
		return
	}
	frame := &runlanev1.PublishDeltasRequest{Fence: p.lease.fence}
	for last := false; ; {
		for {
			if frame.Deltas = p.take(); frame.Deltas == nil {
				break
			}
			// Nothing is lost but what watchers would have seen early.
			if stream.Send(frame) != nil {
				return
			}
			frame = &runlanev1.PublishDeltasRequest{}
		}
		if last {
			_, _ = stream.CloseAndRecv()
			return
		}
		select {
		case <-p.finish:
			last = true
		case <-ctx.Done():
			return
		case <-p.wake:
			select {
			case <-p.finish:
			case <-ctx.Done():
			case <-time.After(deltaLinger):
			}
		}
	}
}

// take returns what is pending, as one round of pieces.
func (p *publisher) take() []*runlanev1.Delta {
	p.mu.Lock()
	defer p.mu.Unlock()
	var round []*runlanev1.Delta
	for _, index := range p.order {
		block := p.blocks[index]
		if len(round) == deltaPieces {
			break
		}
		// A character that a model cut in two waits for its rest.
		whole := wholeRunes(block.pending[:min(len(block.pending), deltaBytes)])
		piece := clean(whole, 0)
		block.pending = block.pending[len(whole):]
		if piece == "" {
			continue
		}
		block.revision++
		round = append(round, &runlanev1.Delta{
			ModelStreamId: p.streamID, RunId: p.lease.fence.RunId,
			ActivationId: p.lease.fence.ActivationId, Step: p.step, BlockIndex: index,
			Kind: block.kind, BaseRevision: block.revision - 1, Revision: block.revision,
			Piece: &runlanev1.Delta_AppendText{AppendText: piece},
		})
	}
	return round
}

// wholeRunes returns a text without a character at its end that is not there as a whole.
func wholeRunes(text string) string {
	for place := len(text) - 1; place >= 0 && place > len(text)-utf8.UTFMax; place-- {
		if utf8.RuneStart(text[place]) {
			if !utf8.FullRuneInString(text[place:]) {
				return text[:place]
			}
			break
		}
	}
	return text
}
