package runlane

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// A fakeService answers as a test says.
type fakeService struct {
	runlanev1.UnimplementedSessionServiceServer
	runlanev1.UnimplementedHistoryServiceServer
	runlanev1.UnimplementedExecutorServiceServer

	mu       sync.Mutex
	requests []*runlanev1.SubmitRequest
	metadata metadata.MD
	// What the submits fail with, in turn; nil: they are taken.
	failures []error
	events   func(*runlanev1.StreamEventsRequest, runlanev1.SessionService_StreamEventsServer) error
	wait     func(context.Context, *runlanev1.WaitRunRequest) (*runlanev1.WaitRunResponse, error)
	poll     func() error
	pollID   string
}

func (f *fakeService) Submit(
	ctx context.Context, request *runlanev1.SubmitRequest,
) (*runlanev1.SubmitResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.metadata, _ = metadata.FromIncomingContext(ctx)
	f.requests = append(f.requests, request)
	if place := len(f.requests) - 1; place < len(f.failures) && f.failures[place] != nil {
		return nil, f.failures[place]
	}
	return &runlanev1.SubmitResponse{Submission: &runlanev1.Submission{SubmissionId: "s"}}, nil
}

func (f *fakeService) StreamEvents(
	request *runlanev1.StreamEventsRequest, stream runlanev1.SessionService_StreamEventsServer,
) error {
	return f.events(request, stream)
}

func (f *fakeService) WaitRun(
	ctx context.Context, request *runlanev1.WaitRunRequest,
) (*runlanev1.WaitRunResponse, error) {
	return f.wait(ctx, request)
}

func (f *fakeService) PollActivation(
	_ context.Context, request *runlanev1.PollActivationRequest,
) (*runlanev1.PollActivationResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pollID = request.RequestId
	return nil, f.poll()
}

// serveFake serves it, and returns a client of it.
func serveFake(t *testing.T, fake *fakeService, options ...ClientOption) *Client {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runlanev1.RegisterSessionServiceServer(server, fake)
	runlanev1.RegisterHistoryServiceServer(server, fake)
	runlanev1.RegisterExecutorServiceServer(server, fake)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return dial(t, listener.Addr().String(), options...)
}

// refusal makes an error as the service does.
func refusal(
	t *testing.T, code codes.Code, reason string, details ...protoadapt.MessageV1,
) error {
	t.Helper()
	info := &errdetails.ErrorInfo{
		Domain: errorDomain, Reason: reason, Metadata: map[string]string{"run_id": "run_1"},
	}
	said, err := status.New(code, "no").WithDetails(append(details, info)...)
	if err != nil {
		t.Fatal(err)
	}
	return said.Err()
}

func retryIn(pause time.Duration) protoadapt.MessageV1 {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(pause)}
}

func TestEveryReasonOfTheContractIsAConstant(t *testing.T) {
	declared := map[Reason]bool{}
	for _, reason := range allReasons {
		declared[reason] = true
	}
	for number, name := range runlanev1.ErrorReason_name {
		reason := Reason(strings.TrimPrefix(name, "ERROR_REASON_"))
		if number != 0 && !declared[reason] {
			t.Errorf("%s has no constant", reason)
		}
		delete(declared, reason)
	}
	for reason := range declared {
		t.Errorf("%s is no reason of the contract", reason)
	}
}

func TestErrorsTellWhatTheServiceSaid(t *testing.T) {
	violation := &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
		{Field: "content[0].text", Description: "too long"},
	}}
	fake := &fakeService{failures: []error{
		refusal(t, codes.InvalidArgument, "FIELD_INVALID", violation, retryIn(time.Second)),
		refusal(t, codes.FailedPrecondition, "NEWER_THAN_THIS_CLIENT"),
		status.Error(codes.PermissionDenied, "a proxy says no"),
	}}
	client := serveFake(t, fake)
	submit := func() error {
		_, err := client.Sessions.Submit(within(t), &runlanev1.SubmitRequest{SessionId: "s"})
		return err
	}
	err := submit()
	var told *Error
	if !errors.As(err, &told) || !errors.Is(err, FieldInvalid) || errors.Is(err, SessionBusy) {
		t.Fatalf("got %v", err)
	}
	if told.Code != codes.InvalidArgument || told.Metadata["run_id"] != "run_1" ||
		!told.Retry || told.RetryAfter != time.Second || status.Code(err) != told.Code ||
		!slices.Equal(told.Violations, []FieldViolation{{"content[0].text", "too long"}}) {
		t.Fatalf("got %+v", told)
	}
	if err := submit(); !errors.Is(err, Reason("NEWER_THAN_THIS_CLIENT")) {
		t.Fatalf("a reason that is new: %v", err)
	}
	var lost *TransportError
	if err := submit(); !errors.As(err, &lost) || lost.Code != codes.PermissionDenied {
		t.Fatalf("without a word of the service: %v", err)
	}
}

func TestACallIsRepeatedWithOneRequestID(t *testing.T) {
	fake := &fakeService{failures: []error{
		status.Error(codes.Unavailable, "gone"),
		refusal(t, codes.Unavailable, "DRAINING", retryIn(10*time.Millisecond)),
		status.Error(codes.Canceled, "a proxy goes away"),
		refusal(t, codes.ResourceExhausted, "QUOTA_EXCEEDED", retryIn(time.Millisecond)),
	}}
	client := serveFake(t, fake, WithNamespace("n"), WithClientName("me"))
	request := &runlanev1.SubmitRequest{SessionId: "s", Content: Text("hello")}
	for range 2 {
		if _, err := client.Sessions.Submit(within(t), request); err != nil {
			t.Fatal(err)
		}
	}
	if len(fake.requests) != 6 || request.RequestId != "" {
		t.Fatalf("%d requests, and the caller's is named %q", len(fake.requests), request.RequestId)
	}
	first := fake.requests[0].RequestId
	for _, one := range fake.requests[:5] {
		if one.RequestId != first || TextOf(one.Content) != "hello" {
			t.Fatalf("a repeat is another request: %v", one)
		}
	}
	if len(first) != 36 || first[14] != '7' || fake.requests[5].RequestId == first {
		t.Fatalf("ids %q and %q", first, fake.requests[5].RequestId)
	}
	if fake.metadata.Get("runlane-namespace")[0] != "n" || fake.metadata.Get("runlane-client")[0] != "me" {
		t.Fatalf("metadata %v", fake.metadata)
	}
}

func TestWhatIsNotSafeIsNotRepeated(t *testing.T) {
	for _, failure := range []error{
		status.Error(codes.Internal, "odd"),
		status.Error(codes.DeadlineExceeded, "slow"),
		refusal(t, codes.ResourceExhausted, "QUOTA_EXCEEDED"),
		refusal(t, codes.FailedPrecondition, "SESSION_BUSY", retryIn(time.Millisecond)),
	} {
		fake := &fakeService{failures: []error{failure}}
		client := serveFake(t, fake)
		_, err := client.Sessions.Submit(within(t), &runlanev1.SubmitRequest{SessionId: "s"})
		if status.Code(err) != status.Code(failure) || len(fake.requests) != 1 {
			t.Errorf("%v: %d requests, %v", failure, len(fake.requests), err)
		}
	}
}

func TestDeadlinesAreThoseOfTheContextOrTheTable(t *testing.T) {
	deadlines := make(chan time.Duration, 2)
	fake := &fakeService{wait: func(
		ctx context.Context, _ *runlanev1.WaitRunRequest,
	) (*runlanev1.WaitRunResponse, error) {
		end, _ := ctx.Deadline()
		deadlines <- time.Until(end)
		return &runlanev1.WaitRunResponse{}, nil
	}}
	client := serveFake(t, fake, WithTimeout(10*time.Second))
	request := &runlanev1.WaitRunRequest{RunId: "r", WaitDuration: durationpb.New(time.Minute)}
	_, err := client.History.WaitRun(context.Background(), request)
	if left := <-deadlines; err != nil || left < 80*time.Second || left > 85*time.Second {
		t.Fatalf("%v: a wait of a minute had %v", err, left)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = client.History.WaitRun(ctx, request)
	if left := <-deadlines; err != nil || left > 5*time.Second {
		t.Fatalf("%v: the context left 5 s, and the call had %v", err, left)
	}
}

func TestAContextThatEndsIsToldAsItsError(t *testing.T) {
	begun := make(chan struct{}, 2)
	fake := &fakeService{wait: func(
		ctx context.Context, _ *runlanev1.WaitRunRequest,
	) (*runlanev1.WaitRunResponse, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	client := serveFake(t, fake)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-begun; cancel() }()
	if _, err := client.WaitRun(ctx, "r", ""); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := client.WaitRun(ctx, "r", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("out of time: %v", err)
	}
	<-begun
	go func() { <-begun; _ = client.Close() }()
	if _, err := client.WaitRun(context.Background(), "r", ""); !errors.Is(err, ErrClientClosed) {
		t.Fatalf("closed: %v", err)
	}
	if _, err := client.WaitRun(context.Background(), "r", ""); !errors.Is(err, ErrClientClosed) {
		t.Fatalf("closed before: %v", err)
	}
}

func TestEveryMethodHasOneRowInTheTable(t *testing.T) {
	rows := map[string]bool{}
	for method := range calls.Methods {
		rows[method] = true
	}
	for _, service := range []grpc.ServiceDesc{
		runlanev1.SessionService_ServiceDesc, runlanev1.HistoryService_ServiceDesc,
		runlanev1.ExecutorService_ServiceDesc, runlanev1.AdminService_ServiceDesc,
		runlanev1.ServerService_ServiceDesc,
	} {
		var names []string
		for _, method := range service.Methods {
			names = append(names, method.MethodName)
		}
		for _, stream := range service.Streams {
			names = append(names, stream.StreamName)
		}
		for _, name := range names {
			full := service.ServiceName + "/" + name
			if !rows[full] {
				t.Errorf("%s has no row", full)
			}
			delete(rows, full)
		}
	}
	for method := range rows {
		t.Errorf("%s is no method", method)
	}
}

func TestBackoffGrowsAndHeedsWhatIsAsked(t *testing.T) {
	for attempt, longest := range map[int]time.Duration{
		1: 50 * time.Millisecond, 2: 100 * time.Millisecond, 9: 2 * time.Second, 99: 2 * time.Second,
	} {
		if pause := pauseAfter(attempt, nil); pause > longest || pause < longest/2 {
			t.Errorf("attempt %d pauses %v", attempt, pause)
		}
	}
	if pause := pauseAfter(1, &Error{Retry: true, RetryAfter: 3 * time.Second}); pause < 3*time.Second {
		t.Errorf("asked for 3 s, pauses %v", pause)
	}
}

func TestAKeyGoesInClearToThisMachineAlone(t *testing.T) {
	for target, fine := range map[string]bool{
		"127.0.0.1:7480": true, "localhost:1": true, "unix:/run/x.sock": true, "[::1]:7480": true,
		"dns:///127.0.0.1:1": true, "10.0.0.1:7480": false, "example.org:443": false,
	} {
		client, err := New(target, WithAPIKey("secret"))
		if (err == nil) != fine {
			t.Errorf("%s: %v", target, err)
		}
		if err == nil {
			_ = client.Close()
		}
	}
	client, err := New("example.org:443", WithAPIKey("secret"), WithInsecure())
	if err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if _, err := New("127.0.0.1:1", WithAPIKey("secret\n")); err == nil ||
		strings.Contains(err.Error(), "secret") {
		t.Fatalf("a key with a line feed: %v", err)
	}
	t.Setenv(keyVariable, "of the environment")
	if _, err := New("127.0.0.1:1"); err == nil {
		t.Fatal("a key with spaces was taken")
	}
}

func TestACallThatItsContextEndsBetweenTwoAttemptsSaysSo(t *testing.T) {
	fake := &fakeService{failures: slices.Repeat([]error{status.Error(codes.Unavailable, "gone")}, 99)}
	client := serveFake(t, fake)
	submit := func(ctx context.Context) error {
		_, err := client.Sessions.Submit(ctx, &runlanev1.SubmitRequest{SessionId: "s"})
		return err
	}
	cancelled, cancel := context.WithCancel(within(t))
	err := submit(context.WithValue(cancelled, repeatKey{}, func(error) { cancel() }))
	if !errors.Is(err, context.Canceled) || status.Code(err) != codes.Unavailable {
		t.Errorf("cancelled: %v", err)
	}
	short, cancel := context.WithTimeout(within(t), 300*time.Millisecond)
	defer cancel()
	var last *TransportError
	if err := submit(short); !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &last) {
		t.Errorf("out of time: %v", err)
	}
	ended, cancel := context.WithCancel(within(t))
	err = reopen(ended, time.Minute,
		func(context.Context) (frames[int], error) {
			cancel()
			return &script{0, &TransportError{Code: codes.Unavailable}}, nil
		}, func(*int) bool { return true })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a stream that is opened again: %v", err)
	}
}

func TestWhoWaitsForTheSessionDoesSoNoLongerThanItsContext(t *testing.T) {
	making, made := make(chan struct{}), make(chan struct{})
	once := newOnceTrue()
	first := make(chan error)
	go func() {
		first <- once.do(within(t), func() error { close(making); <-made; return nil })
	}()
	<-making
	ctx, cancel := context.WithCancel(within(t))
	cancel()
	work := func() error { t.Error("it was done twice"); return nil }
	if err := once.do(ctx, work); !errors.Is(err, context.Canceled) {
		t.Errorf("the second one: %v", err)
	}
	manager := NewSessionManager(serveFake(t, &fakeService{}), "s")
	if err := manager.begin(); err != nil {
		t.Fatal(err)
	}
	if err := manager.CloseAndCancel(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the end of a manager: %v", err)
	}
	manager.submitting.Done()
	close(made)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := once.do(within(t), work); err != nil {
		t.Error(err)
	}
}
