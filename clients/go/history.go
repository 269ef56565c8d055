package runlane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// A SessionHistory reads what was, and forks it. Its lists read page after page as they are
// ranged over, in the order that the contract states for each; a request's page_size is what
// one page holds. A list ends after the first error that it yields.
type SessionHistory struct{ client *Client }

// NewSessionHistory makes a reader of a client's sessions.
func NewSessionHistory(client *Client) *SessionHistory { return &SessionHistory{client} }

// page is an answer of a list.
type page interface{ GetNextPageToken() string }

// pages yields the items of all pages; set puts the token into a request.
func pages[Q proto.Message, A page, T any](
	ctx context.Context, call func(context.Context, Q, ...grpc.CallOption) (A, error),
	request Q, set func(Q, string), items func(A) []T,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		// Each range starts at the first page, and the caller's request stays as it is.
		own := proto.CloneOf(request)
		for {
			answer, err := call(ctx, own)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range items(answer) {
				if !yield(item, nil) {
					return
				}
			}
			token := answer.GetNextPageToken()
			if token == "" {
				return
			}
			set(own, token)
		}
	}
}

// Sessions lists sessions.
func (h *SessionHistory) Sessions(
	ctx context.Context, request *runlanev1.ListSessionsRequest,
) iter.Seq2[*runlanev1.Session, error] {
	return pages(ctx, h.client.History.ListSessions, request,
		func(r *runlanev1.ListSessionsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListSessionsResponse).GetSessions)
}

// Runs lists the runs of a session.
func (h *SessionHistory) Runs(
	ctx context.Context, request *runlanev1.ListRunsRequest,
) iter.Seq2[*runlanev1.Run, error] {
	return pages(ctx, h.client.History.ListRuns, request,
		func(r *runlanev1.ListRunsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListRunsResponse).GetRuns)
}

// ChildRuns lists the direct child runs of a run.
func (h *SessionHistory) ChildRuns(
	ctx context.Context, request *runlanev1.ListChildRunsRequest,
) iter.Seq2[*runlanev1.Run, error] {
	return pages(ctx, h.client.History.ListChildRuns, request,
		func(r *runlanev1.ListChildRunsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListChildRunsResponse).GetRuns)
}

// Submissions lists the submissions of a session.
func (h *SessionHistory) Submissions(
	ctx context.Context, request *runlanev1.ListSubmissionsRequest,
) iter.Seq2[*runlanev1.Submission, error] {
	return pages(ctx, h.client.History.ListSubmissions, request,
		func(r *runlanev1.ListSubmissionsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListSubmissionsResponse).GetSubmissions)
}

// Events lists events of a session or a run.
func (h *SessionHistory) Events(
	ctx context.Context, request *runlanev1.ListEventsRequest,
) iter.Seq2[*runlanev1.Event, error] {
	return pages(ctx, h.client.History.ListEvents, request,
		func(r *runlanev1.ListEventsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListEventsResponse).GetEvents)
}

// Messages lists messages of a session.
func (h *SessionHistory) Messages(
	ctx context.Context, request *runlanev1.ListMessagesRequest,
) iter.Seq2[*runlanev1.Message, error] {
	return pages(ctx, h.client.History.ListMessages, request,
		func(r *runlanev1.ListMessagesRequest, token string) { r.PageToken = token },
		(*runlanev1.ListMessagesResponse).GetMessages)
}

// ForkPoints lists the fork points of a session: its terminal top-level runs.
func (h *SessionHistory) ForkPoints(
	ctx context.Context, request *runlanev1.ListForkPointsRequest,
) iter.Seq2[*runlanev1.ForkPoint, error] {
	return pages(ctx, h.client.History.ListForkPoints, request,
		func(r *runlanev1.ListForkPointsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListForkPointsResponse).GetForkPoints)
}

// ToolCalls lists the tool calls of a run.
func (h *SessionHistory) ToolCalls(
	ctx context.Context, request *runlanev1.ListToolCallsRequest,
) iter.Seq2[*runlanev1.ToolCall, error] {
	return pages(ctx, h.client.History.ListToolCalls, request,
		func(r *runlanev1.ListToolCallsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListToolCallsResponse).GetToolCalls)
}

// Interactions lists interactions of a session, or of all: the inbox of people who answer.
func (h *SessionHistory) Interactions(
	ctx context.Context, request *runlanev1.ListInteractionsRequest,
) iter.Seq2[*runlanev1.Interaction, error] {
	return pages(ctx, h.client.History.ListInteractions, request,
		func(r *runlanev1.ListInteractionsRequest, token string) { r.PageToken = token },
		(*runlanev1.ListInteractionsResponse).GetInteractions)
}

// Forks lists the sessions that were forked from one directly.
func (h *SessionHistory) Forks(
	ctx context.Context, request *runlanev1.GetLineageRequest,
) iter.Seq2[*runlanev1.Session, error] {
	return pages(ctx, h.client.History.GetLineage, request,
		func(r *runlanev1.GetLineageRequest, token string) { r.PageToken = token },
		(*runlanev1.GetLineageResponse).GetForks)
}

// StreamMessages streams the messages of a session after a number, up to the last one. It goes
// on after the last message where a connection is lost.
func (h *SessionHistory) StreamMessages(
	ctx context.Context, sessionID string, afterNumber int64,
) iter.Seq2[*runlanev1.Message, error] {
	return func(yield func(*runlanev1.Message, error) bool) {
		last := afterNumber
		open := func(ctx context.Context) (frames[runlanev1.StreamMessagesResponse], error) {
			return h.client.History.StreamMessages(ctx, &runlanev1.StreamMessagesRequest{
				SessionId: sessionID, AfterNumber: last,
			})
		}
		take := func(frame *runlanev1.StreamMessagesResponse) bool {
			for _, message := range frame.Messages {
				last = message.Number
				if !yield(message, nil) {
					return false
				}
			}
			return true
		}
		if err := reopen(ctx, h.client.reconnect, open, take); err != nil {
			yield(nil, err)
		}
	}
}

// A History is the whole committed history at the end of a run.
type History struct {
	// Header tells the run, the count, the digest and the summary.
	Header *runlanev1.HistoryHeader
	// Messages are all of it, ascending.
	Messages []*runlanev1.Message
}

// AtRun reads the history at the end of a terminal run. It fails with RunNotFound and
// RunNotTerminal.
func (h *SessionHistory) AtRun(ctx context.Context, runID string) (*History, error) {
	history := &History{}
	open := func(ctx context.Context) (frames[runlanev1.GetHistoryAtRunResponse], error) {
		// It comes anew, and is the same: it never changes.
		history.Messages = nil
		return h.client.History.GetHistoryAtRun(ctx, &runlanev1.GetHistoryAtRunRequest{RunId: runID})
	}
	take := func(frame *runlanev1.GetHistoryAtRunResponse) bool {
		if frame.Header != nil {
			history.Header = frame.Header
		}
		history.Messages = append(history.Messages, frame.Messages...)
		return true
	}
	if err := reopen(ctx, h.client.reconnect, open, take); err != nil {
		return nil, err
	}
	return history, nil
}

// A ForkOption changes a fork; any function on the request is one.
type ForkOption func(*runlanev1.ForkSessionRequest)

// WithForkID names the new session.
func WithForkID(sessionID string) ForkOption {
	return func(r *runlanev1.ForkSessionRequest) { r.SessionId = sessionID }
}

// WithForkInput gives the new session its first input, in the same transaction.
func WithForkInput(content []*runlanev1.Block, options *runlanev1.RunOptions) ForkOption {
	return func(r *runlanev1.ForkSessionRequest) {
		r.Input = &runlanev1.ForkInput{Content: content, RunOptions: options}
	}
}

// Fork makes a new session with the history at the end of a terminal run, in constant time. It
// fails with RunNotFound, RunNotTerminal, RunNotTopLevel, SessionExists.
func (h *SessionHistory) Fork(
	ctx context.Context, runID string, options ...ForkOption,
) (*runlanev1.ForkSessionResponse, error) {
	request := &runlanev1.ForkSessionRequest{
		Source: &runlanev1.ForkSessionRequest_RunId{RunId: runID},
	}
	for _, option := range options {
		option(request)
	}
	return h.client.History.ForkSession(ctx, request)
}

// frames is a stream of answers.
type frames[T any] interface{ Recv() (*T, error) }

// reopen reads a stream to its end, and opens it again where it is cut, for as long as patience
// says without a word. take tells whether to read on.
func reopen[T any](
	ctx context.Context, patience time.Duration,
	open func(context.Context) (frames[T], error), take func(*T) bool,
) error {
	connected, failures := false, 0
	// A stream may be silent for long: patience is counted from its loss.
	var lost time.Time
	once := func() (done bool, err error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := open(ctx)
		for err == nil {
			var frame *T
			if frame, err = stream.Recv(); err == nil {
				connected, failures, lost = true, 0, time.Time{}
				if !take(frame) {
					return true, nil
				}
			}
		}
		return err == io.EOF, err
	}
	for {
		done, err := once()
		if done {
			return nil
		}
		if lost.IsZero() {
			lost = time.Now()
		}
		failures++
		pause := pauseAfter(failures, err)
		late := time.Since(lost)+pause > patience
		if late || errors.Is(err, ErrClientClosed) || !calls.Reopen.allows(err, connected) {
			return err
		}
		if cause := sleep(ctx, pause); cause != nil {
			return fmt.Errorf("%w: %w", err, cause)
		}
	}
}
