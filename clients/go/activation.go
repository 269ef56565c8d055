package runlane

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

var reserveStep = &runlanev1.Operation{Operation: &runlanev1.Operation_ReserveModelStep{
	ReserveModelStep: &runlanev1.ReserveModelStep{},
}}

// An activation advances the run of one lease until it ends, stops, is lost, or is given back:
// the loop of model steps and the tools between them.
type activation struct {
	lease    *lease
	leased   *runlanev1.LeasedActivation
	box      *toolbox
	messages []*runlanev1.Message
	summary  *runlanev1.Summary
}

// runActivation does the work; errors end the run or the lease and are logged.
func runActivation(stop context.Context, e *Executor, leased *runlanev1.LeasedActivation) {
	l := newLease(stop, e.client, leased, e.lease, e.log)
	defer l.letGo()
	a := &activation{lease: l, leased: leased, box: e.agents[leased.GetRun().GetAgent()]}
	err := a.settle()
	switch {
	case err == nil:
	case errors.Is(err, errLost):
		l.log.Info("an activation was lost")
	case l.check() == errStopping:
		if !l.over {
			// It may have a call at work, and then it is not taken: it is recovered.
			_, _ = l.commit(nil, released, parting, nil)
		}
	default:
		l.log.Warn("an activation was dropped", "error", err)
	}
}

// settle works, and commits the end that an error means.
func (a *activation) settle() error {
	err := a.work()
	var model *ModelError
	var lost *TransportError
	switch {
	case err == nil, errors.Is(err, errLost), errors.Is(err, ErrClientClosed):
		return err
	case errors.Is(err, errCancelRequested), errors.Is(err, RunCancelling):
		_, err = a.lease.commit(nil, cancelled(), outage, nil)
	case errors.Is(err, errStopping), errors.As(err, &lost):
		return err
	case errors.As(err, &model):
		_, err = a.lease.commit(nil, failed(model.Reason, model.Message, model.Retryable), outage, nil)
	case errors.Is(err, MessageTooLarge):
		// What is too large is so again the next time: it is told, by its size alone.
		a.lease.log.Error("the executor failed at a run", "error", err)
		_, err = a.lease.commit(nil,
			failed(runlanev1.RunFailure_REASON_EXECUTOR_ERROR, err.Error(), false), outage, nil)
	default:
		// The kind alone: what it says may hold what callers must not see.
		kind := kindOf(err)
		a.lease.log.Error("the executor failed at a run", "error_type", kind)
		_, err = a.lease.commit(nil,
			failed(runlanev1.RunFailure_REASON_EXECUTOR_ERROR, kind, false), outage, nil)
	}
	return err
}

// kindOf names an error without a word of what it says: its reason, else its type.
func kindOf(err error) string {
	var told *Error
	if errors.As(err, &told) {
		return string(told.Reason)
	}
	return fmt.Sprintf("%T", err)
}

func (a *activation) work() error {
	if a.box == nil {
		return fmt.Errorf("there is no agent %q here", a.leased.GetRun().GetAgent())
	}
	position := a.leased.GetRun().GetPosition()
	if position == runlanev1.Run_POSITION_OUTCOME_READY {
		_, err := a.lease.commit(nil, completed(""), outage, nil)
		return err
	}
	if err := a.load(); err != nil {
		return err
	}
	var grant *runlanev1.ReserveModelStepResult
	if position == runlanev1.Run_POSITION_TOOL_BATCH {
		if err := a.lease.check(); err != nil {
			return err
		}
		var err error
		if grant, err = a.takeUp(); err != nil {
			return err
		}
	}
	for !a.lease.over {
		if err := a.lease.check(); err != nil {
			return err
		}
		if grant == nil {
			answer, err := a.lease.commit([]*runlanev1.Operation{reserveStep}, nil, outage, nil)
			if err != nil {
				return err
			}
			grant = answer.Results[0].GetReserveModelStep()
		}
		if grant.State != runlanev1.ReserveModelStepResult_STATE_GRANTED {
			return nil
		}
		reply, err := a.ask(grant)
		if err != nil {
			return err
		}
		if grant, err = a.answer(grant, reply); err != nil {
			return err
		}
	}
	return nil
}

// --- context ---------------------------------------------------------------

func (a *activation) load() error {
	if a.leased.Context != nil {
		a.summary = a.leased.Context.Summary
		a.messages = a.leased.Context.Messages
		return nil
	}
	return a.readOn()
}

// readOn reads the messages after the last one that is known.
func (a *activation) readOn() error {
	for failures := 1; ; failures++ {
		complete := false
		err := reopen(a.lease.work, outage,
			func(ctx context.Context) (frames[runlanev1.StreamModelContextResponse], error) {
				return a.lease.client.Executors.StreamModelContext(ctx,
					&runlanev1.StreamModelContextRequest{
						Fence: a.lease.fence, AfterMessageNumber: a.lastNumber(),
					})
			},
			func(frame *runlanev1.StreamModelContextResponse) bool {
				if frame.Summary != nil {
					// It covers more than what was known: what follows is the whole context.
					a.summary, a.messages = frame.Summary, nil
				}
				a.messages = append(a.messages, frame.Messages...)
				complete = complete || frame.End != nil
				return true
			})
		if cause := a.lease.check(); cause != nil {
			return cause
		}
		if anyOf(err, StaleActivation, RunNotFound, SessionNotFound) {
			return fmt.Errorf("%w: %w", errLost, err)
		}
		if err != nil || complete {
			return err
		}
		short := &TransportError{Code: codes.Unavailable, Message: "the context came incomplete"}
		if sleep(a.lease.work, pauseAfter(failures, short)) != nil {
			return a.lease.check()
		}
	}
}

func (a *activation) lastNumber() int64 {
	if len(a.messages) == 0 {
		return 0
	}
	return a.messages[len(a.messages)-1].Number
}

// --- the model -------------------------------------------------------------

func (a *activation) ask(grant *runlanev1.ReserveModelStepResult) (*Reply, error) {
	run := a.leased.Run
	turn := &Turn{
		Run: run, Messages: a.messages, Summary: a.summary, Step: grant.Step,
		Attempt: a.lease.fence.Epoch, ModelStreamID: grant.ModelStreamId,
		Model: run.GetOptions().GetModel(), Tools: a.box.offered(run.GetOptions().GetTools()),
		publisher: newPublisher(a.lease, grant.ModelStreamId, grant.Step),
	}
	if turn.Model == "" {
		turn.Model = a.box.agent.ModelName
	}
	defer turn.publisher.close()
	reply, err := await(a.lease, a.lease.work, func(ctx context.Context) (*Reply, error) {
		return a.box.agent.Model.Reply(ctx, turn)
	})
	if cause := a.lease.check(); cause != nil {
		return nil, cause
	}
	if err == nil && reply == nil {
		err = errors.New("the model answered nothing")
	}
	return reply, err
}

// --- the step --------------------------------------------------------------

// answer commits a step, and runs its tools or ends the run; it returns the next step's grant.
func (a *activation) answer(
	grant *runlanev1.ReserveModelStepResult, reply *Reply,
) (*runlanev1.ReserveModelStepResult, error) {
	step := &runlanev1.CommitModelStep{
		Content: settleUses(reply.Content, a.usedIDs(), grant.Step, a.hidesSteps()),
		Usage:   reply.Usage, Model: clean(reply.Model, nameBytes),
		FinishReason: clean(reply.FinishReason, 64),
	}
	for _, block := range step.Content {
		if block.GetToolUse() == nil {
			continue
		}
		batch := newBatch(a.lease, a.leased, a.box)
		if err := batch.open(step, grant.Step); err != nil || a.lease.over {
			return nil, err
		}
		a.appendStep(grant, step, batch.messageNumber)
		return a.close(batch)
	}
	done := completed(reply.OutputJSON)
	operation := &runlanev1.Operation{
		Operation: &runlanev1.Operation_CommitModelStep{CommitModelStep: step},
	}
	answer, err := a.lease.commit([]*runlanev1.Operation{operation}, done, outage, nil)
	if err != nil || a.lease.over {
		return nil, err
	}
	if answer.Position == runlanev1.Run_POSITION_OUTCOME_READY {
		_, err := a.lease.commit(nil, done, outage, nil)
		return nil, err
	}
	// A steer was delivered instead: the run goes on.
	a.appendStep(grant, step, answer.Results[0].GetCommitModelStep().GetMessageNumber())
	a.messages = append(a.messages, answer.Delivered...)
	return nil, nil
}

// takeUp goes on with the batch that an earlier activation left open.
func (a *activation) takeUp() (*runlanev1.ReserveModelStepResult, error) {
	batch := newBatch(a.lease, a.leased, a.box)
	asking := a.lastNumber()
	for _, message := range a.messages {
		if message.RunId == a.lease.fence.RunId && len(toolUses(message)) > 0 {
			asking = message.Number
		}
	}
	batch.take(a.leased.ToolCalls, asking)
	if err := batch.advance(nil); err != nil || a.lease.over {
		return nil, err
	}
	return a.close(batch)
}

// close takes the results of a batch into what the model sees.
func (a *activation) close(batch *batch) (*runlanev1.ReserveModelStepResult, error) {
	if !batch.closed() {
		return nil, errors.New("a batch of tool calls was left open")
	}
	results, known := batch.messages(a.lastNumber())
	if known {
		a.messages = append(a.messages, results...)
	} else if err := a.readOn(); err != nil {
		// Some results were given by others: by an answer, or before this activation.
		return nil, err
	}
	for _, message := range batch.delivered {
		if message.Number > a.lastNumber() {
			a.messages = append(a.messages, message)
		}
	}
	return batch.grant, nil
}

// hidesSteps tells whether a summary covers messages of this run: ids that it has used are not
// seen.
func (a *activation) hidesSteps() bool {
	for _, message := range a.messages {
		if message.RunId == a.lease.fence.RunId &&
			message.Number <= a.summary.GetThroughMessageNumber() {
			return true
		}
	}
	return false
}

func (a *activation) usedIDs() map[string]bool {
	used := map[string]bool{}
	for _, message := range a.messages {
		if message.RunId == a.lease.fence.RunId {
			for _, use := range toolUses(message) {
				used[use.ToolCallId] = true
			}
		}
	}
	return used
}

func toolUses(message *runlanev1.Message) []*runlanev1.ToolUse {
	var uses []*runlanev1.ToolUse
	for _, block := range message.Content {
		if use := block.GetToolUse(); use != nil {
			uses = append(uses, use)
		}
	}
	return uses
}

func (a *activation) appendStep(
	grant *runlanev1.ReserveModelStepResult, step *runlanev1.CommitModelStep, number int64,
) {
	a.messages = append(a.messages, &runlanev1.Message{
		Number: number, SessionId: a.lease.fence.SessionId, RunId: a.lease.fence.RunId,
		Role: runlanev1.Message_ROLE_ASSISTANT, Author: runlanev1.Message_AUTHOR_MODEL,
		Step: grant.Step, Content: step.Content, ModelStreamId: grant.ModelStreamId,
		Model: step.Model,
	})
}
