package runlane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	errorDomain = "runlane.dev"
	pushbackKey = "grpc-retry-pushback-ms"
)

var (
	// ErrClientClosed is what calls on a closed client end with.
	ErrClientClosed = errors.New("the client is closed")
	// ErrManagerClosed is what calls on a closed session manager end with.
	ErrManagerClosed = errors.New("the session manager is closed")
)

// An Error is a refusal, or a failure, by the service itself.
type Error struct {
	// Reason says why; errors.Is(err, reason) tells it.
	Reason Reason
	// Code is the gRPC status code.
	Code codes.Code
	// Message is text for people.
	Message string
	// Metadata holds what the contract names for the reason.
	Metadata map[string]string
	// Violations names the fields that break a rule, where the request was invalid.
	Violations []FieldViolation
	// RetryAfter is how long to wait before another try; only where Retry is true.
	RetryAfter time.Duration
	// Retry is true where the service said when to try again.
	Retry bool

	status *status.Status
}

// A FieldViolation is a field of the request that breaks its rule.
type FieldViolation struct {
	// Field is its path.
	Field string
	// Description says which rule.
	Description string
}

// Error returns the reason and the text.
func (e *Error) Error() string {
	if e.Message == "" {
		return string(e.Reason)
	}
	return string(e.Reason) + ": " + e.Message
}

// Is tells the error by its reason.
func (e *Error) Is(target error) bool {
	reason, ok := target.(Reason)
	return ok && reason == e.Reason
}

// GRPCStatus returns the status as it came.
func (e *Error) GRPCStatus() *status.Status {
	if e.status == nil {
		return status.New(e.Code, e.Message)
	}
	return e.status
}

// A TransportError is a failure without a word of the service: the connection, the deadline, a
// proxy. Where the context of the call ended it, errors.Is tells that of the context's error.
type TransportError struct {
	// Code is the gRPC status code: Unavailable where there is no connection, DeadlineExceeded
	// where the deadline passed.
	Code codes.Code
	// Message is text for people, by the transport.
	Message string
	// RetryAfter is how long to wait before another try; only where Retry is true. Negative:
	// the peer asked not to try again.
	RetryAfter time.Duration
	// Retry is true where the peer said when to try again.
	Retry bool

	cause error
}

// Error returns the code and the text.
func (e *TransportError) Error() string {
	if e.Message == "" {
		return e.Code.String()
	}
	return e.Code.String() + ": " + e.Message
}

// Unwrap returns the error of the context that ended the call, where one did.
func (e *TransportError) Unwrap() error { return e.cause }

// GRPCStatus returns the status as it came.
func (e *TransportError) GRPCStatus() *status.Status { return status.New(e.Code, e.Message) }

// A StreamGapError says that an event stream without a filter left an event out.
type StreamGapError struct {
	// Expected is the sequence that had to come, Received the one that did.
	Expected, Received int64
}

// Error tells both sequences.
func (e *StreamGapError) Error() string {
	return fmt.Sprintf("expected sequence %d, received %d", e.Expected, e.Received)
}

// FromStatus returns the error of a call that was made on another connection than a [Client]'s:
// an [*Error] where the service gave a reason, else a [*TransportError].
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	return readError(context.Background(), err, nil)
}

// readError returns what a failed call means: an *Error where the service gave a reason, else a
// *TransportError.
func readError(ctx context.Context, err error, trailer metadata.MD) error {
	said := status.Convert(err)
	delay, retry := pushback(trailer)
	var info *errdetails.ErrorInfo
	var violations []FieldViolation
	for _, detail := range said.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			info = detail
		case *errdetails.RetryInfo:
			delay, retry = detail.GetRetryDelay().AsDuration(), true
		case *errdetails.BadRequest:
			for _, one := range detail.GetFieldViolations() {
				violations = append(violations, FieldViolation{one.GetField(), one.GetDescription()})
			}
		}
	}
	if info.GetReason() == "" || info.GetDomain() != errorDomain {
		return &TransportError{
			Code: said.Code(), Message: said.Message(), RetryAfter: delay, Retry: retry,
			cause: contextCause(ctx, said.Code()),
		}
	}
	return &Error{
		Reason: Reason(info.GetReason()), Code: said.Code(), Message: said.Message(),
		Metadata: maps.Clone(info.GetMetadata()), Violations: violations,
		RetryAfter: delay, Retry: retry, status: said,
	}
}

// contextCause returns what ended a call from outside; a cancellation by the peer is none.
func contextCause(ctx context.Context, code codes.Code) error {
	if code == codes.DeadlineExceeded {
		return context.DeadlineExceeded
	}
	return ctx.Err()
}

func pushback(trailer metadata.MD) (time.Duration, bool) {
	for _, value := range trailer.Get(pushbackKey) {
		if milliseconds, err := strconv.ParseInt(value, 10, 32); err == nil {
			return time.Duration(milliseconds) * time.Millisecond, true
		}
	}
	return 0, false
}
