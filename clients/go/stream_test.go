package runlane

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

func eventsFrame(sequences ...int64) *runlanev1.StreamEventsResponse {
	batch := &runlanev1.EventBatch{}
	for _, sequence := range sequences {
		batch.Events = append(batch.Events, &runlanev1.Event{
			Sequence: sequence, Type: runlanev1.Event_TYPE_RUN_CREATED,
		})
	}
	return &runlanev1.StreamEventsResponse{
		Frame: &runlanev1.StreamEventsResponse_Batch{Batch: batch},
	}
}

func bookmarkFrame(sequence int64) *runlanev1.StreamEventsResponse {
	return &runlanev1.StreamEventsResponse{Frame: &runlanev1.StreamEventsResponse_Bookmark{
		Bookmark: &runlanev1.Bookmark{Sequence: sequence, CaughtUp: true},
	}}
}

// A play is what each opening of a stream sends, and ends with.
type play struct {
	frames []*runlanev1.StreamEventsResponse
	end    error
}

// playing makes a fake that plays one after the other, and tells where each began.
func playing(plays ...play) (*fakeService, *[]int64) {
	var cursors []int64
	fake := &fakeService{}
	fake.events = func(
		request *runlanev1.StreamEventsRequest, stream runlanev1.SessionService_StreamEventsServer,
	) error {
		now := plays[min(len(cursors), len(plays)-1)]
		cursors = append(cursors, request.GetAfterSequence())
		for _, frame := range now.frames {
			if err := stream.Send(frame); err != nil {
				return err
			}
		}
		return now.end
	}
	return fake, &cursors
}

func readAll(stream *EventStream) (sequences []int64, err error) {
	for item, err := range stream.All() {
		if err != nil {
			return sequences, err
		}
		if item.Event != nil {
			sequences = append(sequences, item.Event.Sequence)
		}
	}
	return sequences, nil
}

func TestAStreamGoesOnWhereItWasCut(t *testing.T) {
	gone := status.Error(codes.Unavailable, "gone")
	fake, cursors := playing(
		play{[]*runlanev1.StreamEventsResponse{eventsFrame(1, 2), bookmarkFrame(2)}, gone},
		// What was read before comes again: it is dropped.
		play{[]*runlanev1.StreamEventsResponse{eventsFrame(2, 3)}, refusal(t, codes.Unavailable, "STREAM_ENDED", retryIn(time.Millisecond))},
		play{nil, status.Error(codes.Internal, "reset")},
		play{[]*runlanev1.StreamEventsResponse{eventsFrame(4)}, nil},
	)
	stream := serveFake(t, fake).Events(within(t), "s")
	got, err := readAll(stream)
	if err != nil || !slices.Equal(got, []int64{1, 2, 3, 4}) || stream.Sequence() != 4 {
		t.Fatalf("%v %v", got, err)
	}
	if !slices.Equal(*cursors, []int64{0, 2, 3, 3}) {
		t.Fatalf("it was opened at %v", *cursors)
	}
}

func TestAGapIsNoEnd(t *testing.T) {
	fake, _ := playing(play{[]*runlanev1.StreamEventsResponse{eventsFrame(1, 3)}, nil})
	got, err := readAll(serveFake(t, fake).Events(within(t), "s"))
	var gap *StreamGapError
	if !errors.As(err, &gap) || gap.Expected != 2 || gap.Received != 3 || len(got) != 1 {
		t.Fatalf("%v %v", got, err)
	}
	// With a filter what is left out is no gap.
	fake, _ = playing(play{[]*runlanev1.StreamEventsResponse{eventsFrame(1, 3), bookmarkFrame(9)}, nil})
	stream := serveFake(t, fake).Events(within(t), "s", OfRuns("r"))
	if got, err = readAll(stream); err != nil || len(got) != 2 || stream.Sequence() != 9 {
		t.Fatalf("%v %v at %d", got, err, stream.Sequence())
	}
}

func TestARefusalEndsTheStream(t *testing.T) {
	for _, reason := range []string{"SEQUENCE_AHEAD", "STREAM_LIMIT", "SESSION_NOT_FOUND"} {
		fake, cursors := playing(play{nil, refusal(t, codes.OutOfRange, reason)})
		_, err := readAll(serveFake(t, fake).Events(within(t), "s"))
		if !errors.Is(err, Reason(reason)) || len(*cursors) != 1 {
			t.Errorf("%s: %v after %d openings", reason, err, len(*cursors))
		}
	}
	fake, cursors := playing(play{nil, status.Error(codes.Unavailable, "gone")})
	client := serveFake(t, fake, WithReconnectTimeout(100*time.Millisecond))
	_, err := readAll(client.Events(within(t), "s"))
	if status.Code(err) != codes.Unavailable || len(*cursors) < 2 {
		t.Fatalf("patience ended with %v after %d openings", err, len(*cursors))
	}
}

func TestDeletionEndsAStreamAndSoDoesClose(t *testing.T) {
	deleted := eventsFrame(1, 2)
	batch := deleted.GetBatch()
	batch.Events[1].Type = runlanev1.Event_TYPE_SESSION_DELETED
	fake, cursors := playing(play{
		[]*runlanev1.StreamEventsResponse{deleted}, status.Error(codes.Unavailable, "gone"),
	})
	got, err := readAll(serveFake(t, fake).Events(within(t), "s"))
	if err != nil || len(got) != 2 || len(*cursors) != 1 {
		t.Fatalf("%v %v", got, err)
	}
	ctx, cancel := context.WithCancel(within(t))
	fake = &fakeService{events: func(
		_ *runlanev1.StreamEventsRequest, stream runlanev1.SessionService_StreamEventsServer,
	) error {
		_ = stream.Send(eventsFrame(1))
		<-stream.Context().Done()
		return nil
	}}
	client := serveFake(t, fake)
	stream := client.Events(ctx, "s")
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	go stream.Close()
	if _, err := stream.Next(); err != io.EOF {
		t.Fatalf("closed: %v", err)
	}
	stream = client.Events(ctx, "s")
	if _, err := stream.Next(); err != nil {
		t.Fatal(err)
	}
	go cancel()
	if _, err := stream.Next(); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

func TestAStreamThatFallsSilentIsOpenedAgain(t *testing.T) {
	before := streamSilence
	streamSilence = 50 * time.Millisecond
	t.Cleanup(func() { streamSilence = before })
	openings := 0
	fake := &fakeService{events: func(
		_ *runlanev1.StreamEventsRequest, stream runlanev1.SessionService_StreamEventsServer,
	) error {
		if openings++; openings == 2 {
			return stream.Send(eventsFrame(1))
		}
		<-stream.Context().Done()
		return nil
	}}
	got, err := readAll(serveFake(t, fake).Events(within(t), "s"))
	if err != nil || len(got) != 1 || openings != 2 {
		t.Fatalf("%v %v after %d openings", got, err, openings)
	}
}

func TestEventsBeginWhereTheSessionStands(t *testing.T) {
	ctx := within(t)
	client := dial(t, liveAddress(t))
	manager := NewSessionManager(client, unique("s"), WithAgent("echo"))
	must[*RunResult](t)(manager.Run(ctx, Start, Text("before")))
	stream := must[*EventStream](t)(manager.Events(ctx, WithMessages()))
	answer := must[*runlanev1.SubmitResponse](t)(manager.Submit(ctx, Start, Text("after")))
	var texts []string
	for item, err := range stream.All() {
		if err != nil {
			t.Fatal(err)
		}
		if item.Event.RunId != answer.Submission.RunId {
			t.Fatalf("an event of another run: %v", item.Event)
		}
		texts = append(texts, TextOf(item.Event.GetMessage().GetContent()))
		if item.Event.Type == runlanev1.Event_TYPE_RUN_TERMINAL {
			break
		}
	}
	if got := strings.Join(texts, ""); got != "afterYou said: after" {
		t.Fatalf("messages %q", got)
	}
	// A stream of runs ends with them; one of what there is ends with that.
	ended := client.Events(ctx, manager.SessionID(), OfRuns(answer.Submission.RunId))
	if _, err := readAll(ended); err != nil {
		t.Fatal(err)
	}
	all, err := readAll(client.Events(ctx, manager.SessionID(), UntilNow()))
	if err != nil || all[len(all)-1] != stream.Sequence() {
		t.Fatalf("%v %v", all, err)
	}
	last, err := readAll(client.Events(ctx, manager.SessionID(), UntilNow(), Last(3)))
	if err != nil || !slices.Equal(last, all[len(all)-3:]) {
		t.Fatalf("the last three are %v, %v", last, err)
	}
}

func TestAStreamThatEndedByItselfIsForgotten(t *testing.T) {
	fake, _ := playing(play{[]*runlanev1.StreamEventsResponse{eventsFrame(1)}, nil},
		play{nil, refusal(t, codes.OutOfRange, "SEQUENCE_AHEAD")})
	manager := NewSessionManager(serveFake(t, fake), "s")
	manager.made.done = true
	for range 2 {
		stream := must[*EventStream](t)(manager.Events(within(t), After(0)))
		_, _ = readAll(stream)
		if stream.ctx.Err() == nil {
			t.Error("its context goes on")
		}
		if _, err := stream.Next(); err != io.EOF {
			t.Errorf("after its end: %v", err)
		}
	}
	for {
		manager.mu.Lock()
		kept := len(manager.streams)
		manager.mu.Unlock()
		if kept == 0 {
			return
		}
		if sleep(within(t), time.Millisecond) != nil {
			t.Fatalf("%d streams are kept", kept)
		}
	}
}

// A script is a stream that sends so many frames, and ends.
type script struct {
	frames int
	end    error
}

func (s *script) Recv() (*int, error) {
	if s.frames == 0 {
		return nil, s.end
	}
	s.frames--
	return new(int), nil
}

func TestPatienceIsCountedFromTheLoss(t *testing.T) {
	gone := &TransportError{Code: codes.Unavailable}
	limit := &Error{Reason: "STREAM_LIMIT", Code: codes.ResourceExhausted}
	read := func(patience time.Duration, slow time.Duration, plays ...script) error {
		return reopen(within(t), patience,
			func(context.Context) (frames[int], error) {
				now := plays[0]
				plays = plays[min(1, len(plays)-1):]
				return &now, nil
			},
			func(*int) bool { time.Sleep(slow); return true })
	}
	// Who takes long over a frame has lost nothing by that.
	const patience = 200 * time.Millisecond
	if err := read(patience, 2*patience, script{1, gone}, script{0, io.EOF}); err != nil {
		t.Errorf("a slow reader: %v", err)
	}
	if err := read(patience, 0, script{0, gone}); !errors.Is(err, gone) {
		t.Errorf("a server that does not come back: %v", err)
	}
	// The place of a stream that was open may not be free yet; one that never was has none.
	if err := read(time.Minute, 0, script{0, gone}, script{0, limit}); !errors.Is(err, StreamLimit) {
		t.Errorf("a stream that was never open: %v", err)
	}
	if err := read(time.Minute, 0, script{1, gone}, script{0, limit}, script{0, io.EOF}); err != nil {
		t.Errorf("a stream that was open: %v", err)
	}
}
