package main

import (
	"context"
	"errors"
	"iter"

	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go"
	"github.com/runlane/runlane/clients/go/runlanev1"
)

// A lister reads a whole list with the client's iterator.
type lister func(context.Context, *runlane.SessionHistory, proto.Message) ([]any, error)

// listers are the lists of a history by method, but for ListSessions, which others move, and
// GetLineage, which is more than a list.
var listers = map[string]lister{
	"ListRuns":         listed((*runlane.SessionHistory).Runs),
	"ListChildRuns":    listed((*runlane.SessionHistory).ChildRuns),
	"ListSubmissions":  listed((*runlane.SessionHistory).Submissions),
	"ListEvents":       listed((*runlane.SessionHistory).Events),
	"ListMessages":     listed((*runlane.SessionHistory).Messages),
	"ListForkPoints":   listed((*runlane.SessionHistory).ForkPoints),
	"ListToolCalls":    listed((*runlane.SessionHistory).ToolCalls),
	"ListInteractions": listed((*runlane.SessionHistory).Interactions),
}

func listed[Q, T proto.Message](
	list func(*runlane.SessionHistory, context.Context, Q) iter.Seq2[T, error],
) lister {
	return func(
		ctx context.Context, history *runlane.SessionHistory, request proto.Message,
	) ([]any, error) {
		items := []any{}
		for item, err := range list(history, ctx, request.(Q)) {
			if err != nil {
				return nil, refusal(err)
			}
			made, err := toJSON(item)
			if err != nil {
				return nil, err
			}
			items = append(items, made)
		}
		return items, nil
	}
}

// sameByClient holds the client's own list against the pages.
func (b *binding) sameByClient(ctx context.Context, name string, asked, merged object) error {
	list, known := listers[name]
	if !known || name == "ListInteractions" && asked["session_id"] == nil {
		return nil
	}
	request, err := readMessage(methods[name].Input(), asked)
	if err != nil {
		return err
	}
	items, err := list(ctx, runlane.NewSessionHistory(b.client), request)
	if err != nil {
		return err
	}
	paged := []any{}
	for _, value := range merged {
		paged = value.([]any)
	}
	if why := mismatch(paged, items, object{}, ""); why != "" {
		return errors.New("the client lists others: " + why)
	}
	return nil
}

// fork forks with the client's verb.
func (b *binding) fork(ctx context.Context, request *runlanev1.ForkSessionRequest) (any, error) {
	answer, err := runlane.NewSessionHistory(b.client).Fork(ctx, request.GetRunId(),
		func(made *runlanev1.ForkSessionRequest) {
			if request.Source == nil {
				made.Source = nil
			}
			proto.Merge(made, request)
		})
	if err != nil {
		return nil, refusal(err)
	}
	return toJSON(answer)
}
