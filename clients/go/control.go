package runlane

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// Pause stops the live run at its next boundary, or at once where nobody has it. With a run id
// only that run.
func (m *SessionManager) Pause(
	ctx context.Context, runID string,
) (*runlanev1.PauseRunResponse, error) {
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	return m.client.Sessions.PauseRun(ctx, &runlanev1.PauseRunRequest{
		SessionId: m.sessionID, RunId: runID,
	})
}

// Unpause takes a pause, or the request for one, back. With a run id only of that run.
func (m *SessionManager) Unpause(
	ctx context.Context, runID string,
) (*runlanev1.UnpauseRunResponse, error) {
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	return m.client.Sessions.UnpauseRun(ctx, &runlanev1.UnpauseRunRequest{
		SessionId: m.sessionID, RunId: runID,
	})
}

// Restore brings back a run whose executor was lost, or is thought to be.
// expectedActivationID is the activation that the caller has seen; needed where the run is
// active. force also cuts off an executor whose lease is live.
func (m *SessionManager) Restore(
	ctx context.Context, runID, expectedActivationID string, force bool,
) (*runlanev1.RestoreRunResponse, error) {
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	return m.client.Sessions.RestoreRun(ctx, &runlanev1.RestoreRunRequest{
		RunId: runID, ExpectedActivationId: expectedActivationID, Force: force,
	})
}

// An Answer writes what is said to a question.
type Answer func(question *runlanev1.Interaction) (*runlanev1.InteractionAnswer, error)

// AnswerText answers a question.
func AnswerText(text string) Answer {
	return func(*runlanev1.Interaction) (*runlanev1.InteractionAnswer, error) {
		return &runlanev1.InteractionAnswer{Kind: &runlanev1.InteractionAnswer_Question{
			Question: &runlanev1.QuestionAnswer{Text: text},
		}}, nil
	}
}

// AnswerForm answers a form with what encoding/json makes of a value; a json.RawMessage goes as
// it is.
func AnswerForm(value any) Answer {
	return func(*runlanev1.Interaction) (*runlanev1.InteractionAnswer, error) {
		text, ok := value.(json.RawMessage)
		if !ok {
			var err error
			if text, err = json.Marshal(value); err != nil {
				return nil, err
			}
		}
		return &runlanev1.InteractionAnswer{Kind: &runlanev1.InteractionAnswer_Form{
			Form: &runlanev1.FormAnswer{Json: string(text)},
		}}, nil
	}
}

// Approve lets all calls run that ask for permission.
func Approve() Answer { return verdict(runlanev1.Decision_VERDICT_APPROVE, "") }

// Reject lets none of them run; the model is told the reason.
func Reject(reason string) Answer { return verdict(runlanev1.Decision_VERDICT_REJECT, reason) }

// Decide says of each call that asks for permission whether it may run.
func Decide(decisions ...*runlanev1.Decision) Answer {
	return func(*runlanev1.Interaction) (*runlanev1.InteractionAnswer, error) {
		return &runlanev1.InteractionAnswer{Kind: &runlanev1.InteractionAnswer_Permission{
			Permission: &runlanev1.PermissionAnswer{Decisions: decisions},
		}}, nil
	}
}

func verdict(said runlanev1.Decision_Verdict, reason string) Answer {
	return func(question *runlanev1.Interaction) (*runlanev1.InteractionAnswer, error) {
		asking := question.GetPrompt().GetPermission()
		if asking == nil {
			return nil, fmt.Errorf("interaction %s asks for no permission", question.GetInteractionId())
		}
		var decisions []*runlanev1.Decision
		for _, call := range asking.Calls {
			decisions = append(decisions, &runlanev1.Decision{
				ToolCallId: call.ToolCallId, Verdict: said, Reason: reason,
			})
		}
		return Decide(decisions...)(question)
	}
}

// Answer answers what the session waits for, and returns at once. interactionID names what is
// answered; empty: what the session waits for now. The same answer again gives the stored one.
//
// It fails with InteractionNotFound where the session waits for no answer, or not for this one,
// InteractionConflict where it has another answer, InteractionClosed, AnswerInvalid.
func (m *SessionManager) Answer(
	ctx context.Context, interactionID string, answer Answer,
) (*runlanev1.AnswerInteractionResponse, error) {
	_, said, err := m.answer(ctx, interactionID, answer)
	return said, err
}

// Resume answers as Answer does and waits until the run stops again: it waits once more, was
// paused, or has ended.
func (m *SessionManager) Resume(
	ctx context.Context, interactionID string, answer Answer,
) (*RunResult, error) {
	question, _, err := m.answer(ctx, interactionID, answer)
	if err != nil {
		return nil, err
	}
	// Of a proxy it is the run of this session that is waited for, not the one that asks.
	return m.WaitStopped(ctx, question.RunId)
}

func (m *SessionManager) answer(
	ctx context.Context, interactionID string, answer Answer,
) (*runlanev1.Interaction, *runlanev1.AnswerInteractionResponse, error) {
	if err := m.ready(ctx); err != nil {
		return nil, nil, err
	}
	question, err := m.question(ctx, interactionID)
	if err != nil {
		return nil, nil, err
	}
	said, err := answer(question)
	if err != nil {
		return nil, nil, err
	}
	answered, err := m.client.Sessions.AnswerInteraction(ctx, &runlanev1.AnswerInteractionRequest{
		RunId: question.RunId, InteractionId: question.InteractionId, Version: question.Version,
		Answer: said,
	})
	return question, answered, err
}

// question finds what is to be answered.
func (m *SessionManager) question(
	ctx context.Context, interactionID string,
) (*runlanev1.Interaction, error) {
	state, err := m.client.liveState(ctx, m.sessionID, 0)
	if err != nil {
		return nil, err
	}
	for _, found := range state.OpenInteractions {
		if interactionID == "" || found.InteractionId == interactionID {
			return m.client.wholeQuestion(ctx, found)
		}
	}
	what := "an answer"
	if interactionID != "" {
		// One that was answered before: the same answer again is no harm.
		answered := NewSessionHistory(m.client).Interactions(ctx, &runlanev1.ListInteractionsRequest{
			SessionId: m.sessionID, State: runlanev1.Interaction_STATE_ANSWERED, PageSize: 1000,
		})
		for found, err := range answered {
			if err != nil {
				return nil, err
			}
			if found.InteractionId == interactionID {
				return found, nil
			}
		}
		what = "interaction " + interactionID
	}
	return nil, notFound(InteractionNotFound, "session %s does not wait for %s", m.sessionID, what)
}
