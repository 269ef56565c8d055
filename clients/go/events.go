package runlane

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

var (
	errStreamClosed = errors.New("the stream is closed")
	// Bookmarks come every 15 s: a stream that is silent for longer has lost its peer.
	streamSilence = seconds(
		calls.policy(runlanev1.SessionService_StreamEvents_FullMethodName).SilenceSeconds)
)

// An Item is what an event stream yields; one field is set.
type Item struct {
	// Event is a durable fact.
	Event *runlanev1.Event
	// Delta is a piece of a model answer on its way; only with [WithDeltas].
	Delta *runlanev1.Delta
	// Control is the control state, first and after each change; only with [WithControl].
	Control *runlanev1.Control
}

// An EventOption changes what a stream of events holds.
type EventOption func(*runlanev1.StreamEventsRequest)

// After starts after this sequence; 0: with the first event.
func After(sequence int64) EventOption {
	return func(r *runlanev1.StreamEventsRequest) {
		r.Start = &runlanev1.StreamEventsRequest_AfterSequence{AfterSequence: sequence}
	}
}

// Last starts with the newest so many events: 0 to 1,000.
func Last(count int32) EventOption {
	return func(r *runlanev1.StreamEventsRequest) {
		r.Start = &runlanev1.StreamEventsRequest_LastEvents{LastEvents: count}
	}
}

// OfRuns takes only events of these runs, and ends after the last of them has ended.
func OfRuns(ids ...string) EventOption {
	return func(r *runlanev1.StreamEventsRequest) { r.RunIds = append(r.RunIds, ids...) }
}

// OfTypes takes only events of these types.
func OfTypes(types ...runlanev1.Event_Type) EventOption {
	return func(r *runlanev1.StreamEventsRequest) { r.Types = append(r.Types, types...) }
}

// WithMessages puts the messages into their events.
func WithMessages() EventOption {
	return func(r *runlanev1.StreamEventsRequest) { r.IncludeMessages = true }
}

// WithDeltas also yields pieces of model answers on their way.
func WithDeltas() EventOption {
	return func(r *runlanev1.StreamEventsRequest) { r.IncludeDeltas = true }
}

// WithControl also yields the control state.
func WithControl() EventOption {
	return func(r *runlanev1.StreamEventsRequest) { r.IncludeControl = true }
}

// UntilNow ends the stream where it has caught up.
func UntilNow() EventOption {
	return func(r *runlanev1.StreamEventsRequest) { r.Follow = proto.Bool(false) }
}

// An EventStream yields a session's events in order, each once, also over lost connections: it
// is opened again after the last event that it was told, by itself. It ends where the service
// says that nothing can follow. One goroutine at a time reads it; any may close it.
type EventStream struct {
	client   *Client
	ctx      context.Context
	cancel   context.CancelCauseFunc
	request  *runlanev1.StreamEventsRequest
	patience time.Duration
	// Without a filter each sequence follows the one before.
	whole bool
	// -1 until the first event where it starts with the newest few.
	received, yielded int64
	buffer            []Item
	call              grpc.ServerStreamingClient[runlanev1.StreamEventsResponse]
	endCall           context.CancelFunc
	watchdog          *time.Timer
	connected         bool
	caughtUp          bool
	lostSince         time.Time
	failures          int
	over              bool
	// What it ends with once what came before is yielded.
	failure error
}

// Events streams the events of a session from its first one, or as the options say. The stream
// lives no longer than the context. Most read a session with a [SessionManager].
func (c *Client) Events(
	ctx context.Context, sessionID string, options ...EventOption,
) *EventStream {
	request := &runlanev1.StreamEventsRequest{SessionId: sessionID}
	for _, option := range options {
		option(request)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stream := &EventStream{
		client: c, ctx: ctx, cancel: cancel, request: request, patience: c.reconnect,
		whole:    len(request.RunIds) == 0 && len(request.Types) == 0,
		received: request.GetAfterSequence(),
	}
	stream.yielded = stream.received
	if _, newest := request.Start.(*runlanev1.StreamEventsRequest_LastEvents); newest {
		stream.received, stream.yielded = -1, 0
	}
	return stream
}

// Sequence returns the sequence up to which everything was yielded or filtered out.
func (s *EventStream) Sequence() int64 {
	if len(s.buffer) > 0 {
		return s.yielded
	}
	return max(s.received, 0)
}

// Close ends the stream; idempotent.
func (s *EventStream) Close() { s.cancel(errStreamClosed) }

// All yields what comes until the stream ends, with a nil error, and last the error that ended
// it where one did. Leaving the loop does not close the stream.
func (s *EventStream) All() iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		for {
			item, err := s.Next()
			if err == io.EOF {
				return
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}

// Next returns what comes next. It returns io.EOF at the end, also where the stream was closed;
// the context's error where that ended; and what the service answers, such as SequenceAhead.
func (s *EventStream) Next() (Item, error) {
	for len(s.buffer) == 0 {
		if err := s.failure; err != nil {
			s.over, s.failure = true, nil
			s.Close()
			return Item{}, err
		}
		if s.over {
			// Its context, and who waits for the end of that, are let go.
			s.Close()
			return Item{}, io.EOF
		}
		if s.ctx.Err() != nil {
			s.drop()
			return Item{}, s.ended()
		}
		if s.failure = s.advance(); s.failure != nil {
			s.drop()
		}
	}
	item := s.buffer[0]
	s.buffer = s.buffer[1:]
	if item.Event != nil {
		s.yielded = item.Event.Sequence
	}
	return item, nil
}

// ended returns why the context did: closed by Close is an end like another.
func (s *EventStream) ended() error {
	if s.client.closed.Load() {
		return ErrClientClosed
	}
	if context.Cause(s.ctx) != errStreamClosed {
		return s.ctx.Err()
	}
	s.over = true
	return io.EOF
}

func (s *EventStream) drop() {
	if s.call != nil {
		s.watchdog.Stop()
		s.endCall()
		s.call, s.caughtUp = nil, false
	}
}

// advance takes one step towards the next item: a frame, or a pause.
func (s *EventStream) advance() error {
	if s.call == nil {
		if s.received >= 0 {
			After(s.received)(s.request)
		}
		ctx, cancel := context.WithCancel(s.ctx)
		call, err := s.client.Sessions.StreamEvents(ctx, s.request)
		if err != nil {
			cancel()
			return s.pause(err)
		}
		s.call, s.endCall, s.watchdog = call, cancel, time.AfterFunc(streamSilence, cancel)
	}
	frame, err := s.call.Recv()
	if err == nil {
		s.watchdog.Reset(streamSilence)
		return s.take(frame)
	}
	silent := !s.watchdog.Stop()
	s.drop()
	switch {
	case err == io.EOF:
		s.over = true
		return nil
	case s.ctx.Err() != nil:
		return nil
	case silent:
		err = &TransportError{Code: codes.Unavailable, Message: "the stream fell silent"}
	}
	return s.pause(err)
}

// pause waits before the next try, or returns the error that none can mend.
func (s *EventStream) pause(err error) error {
	if errors.Is(err, ErrClientClosed) || !calls.Reopen.allows(err, s.connected) {
		return err
	}
	if s.lostSince.IsZero() {
		s.lostSince = time.Now()
	}
	s.failures++
	wait := pauseAfter(s.failures, err)
	if time.Since(s.lostSince)+wait > s.patience {
		return err
	}
	_ = sleep(s.ctx, wait)
	return nil
}

func (s *EventStream) take(frame *runlanev1.StreamEventsResponse) error {
	s.connected = true
	s.lostSince = time.Time{}
	switch frame := frame.Frame.(type) {
	case *runlanev1.StreamEventsResponse_Batch:
		for _, event := range frame.Batch.Events {
			fresh, err := s.move(event.Sequence, 1)
			if err != nil {
				return err
			}
			if fresh {
				s.push(Item{Event: event})
			}
			if event.Type == runlanev1.Event_TYPE_SESSION_DELETED {
				// Nothing follows it; to ask again would find no session.
				s.over = true
				s.drop()
				return nil
			}
		}
	case *runlanev1.StreamEventsResponse_Bookmark:
		s.caughtUp = frame.Bookmark.CaughtUp
		_, err := s.move(frame.Bookmark.Sequence, 0)
		return err
	case *runlanev1.StreamEventsResponse_Deltas:
		for _, delta := range frame.Deltas.Deltas {
			s.push(Item{Delta: delta})
		}
	case *runlanev1.StreamEventsResponse_Control:
		s.push(Item{Control: frame.Control})
	}
	return nil
}

func (s *EventStream) push(item Item) {
	// What was read before was yielded, or filtered out.
	if len(s.buffer) == 0 && item.Event == nil {
		s.yielded = max(s.received, 0)
	}
	s.buffer = append(s.buffer, item)
}

// move moves the cursor by an event (1) or a bookmark (0); false where it is there already.
func (s *EventStream) move(sequence, by int64) (bool, error) {
	if s.received >= 0 && sequence <= s.received {
		return false, nil
	}
	if s.received >= 0 && s.whole && sequence != s.received+by {
		return false, &StreamGapError{Expected: s.received + 1, Received: sequence}
	}
	s.received = sequence
	s.failures = 0
	return true, nil
}
