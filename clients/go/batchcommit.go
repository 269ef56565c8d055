package runlane

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// commitLast commits what is left, and with it the question, or the next step's reservation.
func (b *batch) commitLast(operations []*runlanev1.Operation, failed bool) error {
	stopping := failed && b.stops
	if !stopping {
		prompt, token := b.nextPrompt()
		if token != nil {
			return b.waitFor(operations, prompt, token)
		}
		if prompt != nil {
			return b.commit(operations, suspend(promptWait(prompt)))
		}
		if b.delegated() {
			return b.commit(operations, suspend(&runlanev1.Suspend{
				Wait: &runlanev1.Suspend_Children{
					Children: &runlanev1.ChildrenWait{Mode: runlanev1.ChildrenWait_MODE_ALL},
				},
			}))
		}
	}
	// A boundary takes a pause, and the STOP policy the run: then nothing is to follow.
	if len(operations) > 0 && !stopping && !b.lease.pausing.Load() {
		operations = append(operations, reserveStep)
	}
	if len(operations) == 0 {
		return nil
	}
	return b.commit(operations, nil)
}

func promptWait(prompt *runlanev1.Prompt) *runlanev1.Suspend {
	return &runlanev1.Suspend{Wait: &runlanev1.Suspend_Prompt{Prompt: prompt}}
}

// nextPrompt returns what is to be asked next: permissions first, then questions one by one. Of
// an external wait also what is to be done with its token.
func (b *batch) nextPrompt() (*runlanev1.Prompt, *batchCall) {
	var asking []*runlanev1.PermissionCall
	for _, call := range b.calls {
		if call.plan.ask && !call.settled && len(asking) < batchItems {
			asking = append(asking, &runlanev1.PermissionCall{ToolCallId: call.record.ToolCallId})
		}
	}
	if len(asking) > 0 {
		return &runlanev1.Prompt{Kind: &runlanev1.Prompt_Permission{
			Permission: &runlanev1.PermissionPrompt{Calls: asking},
		}}, nil
	}
	for _, call := range b.calls {
		if call.settled || call.plan.prompt == nil {
			continue
		}
		if call.plan.prompt.GetExternal() != nil {
			return call.plan.prompt, call
		}
		return call.plan.prompt, nil
	}
	return nil, nil
}

// delegated tells whether child runs are still to answer calls.
func (b *batch) delegated() bool {
	for _, call := range b.calls {
		if call.plan.delegate && !call.settled {
			return true
		}
	}
	return false
}

func (b *batch) commit(operations []*runlanev1.Operation, end outcome) error {
	left := operations
	told := func(done []*runlanev1.Operation, answer *runlanev1.CommitResponse) {
		// What is committed in turn is so from the front.
		left = left[min(len(done), len(left)):]
		b.taken(done, answer)
	}
	err := b.lease.commitInTurn(operations, end, told)
	if !errors.Is(err, RunCancelling) {
		return err
	}
	// Facts are still taken, once; what was to follow them is not.
	var facts []*runlanev1.Operation
	for _, operation := range left {
		switch operation.Operation.(type) {
		case *runlanev1.Operation_CommitModelStep, *runlanev1.Operation_CommitToolResults:
			facts = append(facts, operation)
		}
	}
	_, err = b.lease.commit(facts, cancelled(), outage, told)
	return err
}

// taken notes what was committed.
func (b *batch) taken(operations []*runlanev1.Operation, answer *runlanev1.CommitResponse) {
	b.delivered = append(b.delivered, answer.Delivered...)
	b.externalToken = answer.ExternalToken
	for _, operation := range operations {
		b.claimed = append(b.claimed, operation.GetClaimToolCalls().GetToolCallIds()...)
		for _, result := range operation.GetCommitToolResults().GetResults() {
			call := b.byID[result.ToolCallId]
			call.settled, call.result = true, result
		}
	}
	var unsent []*runlanev1.ToolResult
	for _, result := range b.unsent {
		if b.byID[result.ToolCallId].result == nil {
			unsent = append(unsent, result)
		}
	}
	b.unsent = unsent
	for _, made := range answer.Results {
		if opened := made.GetCommitModelStep(); opened != nil {
			b.opened(opened)
		}
		if grant := made.GetReserveModelStep(); grant != nil {
			b.grant = grant
		}
	}
}

func (b *batch) opened(opened *runlanev1.CommitModelStepResult) {
	b.messageNumber = opened.MessageNumber
	for _, record := range opened.ToolCalls {
		call := b.byID[record.ToolCallId]
		call.record = record
		switch record.State {
		case runlanev1.ToolCall_STATE_PREPARED, runlanev1.ToolCall_STATE_CLAIMED:
		default:
			call.settled = true
		}
		if call.result == nil {
			call.result = record.Result
		}
	}
}

// claimsOf claims calls: those that may be run again apart from the others.
func claimsOf(running []*batchCall) []*runlanev1.Operation {
	var claims []*runlanev1.Operation
	for _, idempotent := range []bool{true, false} {
		var claim *runlanev1.ClaimToolCalls
		for _, call := range running {
			if call.plan.tool.Idempotent != idempotent {
				continue
			}
			if claim == nil || len(claim.ToolCallIds) == batchItems {
				claim = &runlanev1.ClaimToolCalls{Idempotent: idempotent}
				claims = append(claims, &runlanev1.Operation{
					Operation: &runlanev1.Operation_ClaimToolCalls{ClaimToolCalls: claim},
				})
			}
			claim.ToolCallIds = append(claim.ToolCallIds, call.record.ToolCallId)
		}
	}
	return claims
}

// results makes the operation of some results; none of none.
func results(portion []*runlanev1.ToolResult) []*runlanev1.Operation {
	if len(portion) == 0 {
		return nil
	}
	return []*runlanev1.Operation{{Operation: &runlanev1.Operation_CommitToolResults{
		CommitToolResults: &runlanev1.CommitToolResults{Results: portion},
	}}}
}

// portionsOf cuts results into what one commit takes.
func portionsOf(all []*runlanev1.ToolResult) [][]*runlanev1.ToolResult {
	var portions [][]*runlanev1.ToolResult
	var size int
	for _, result := range all {
		more := proto.Size(result)
		last := len(portions) - 1
		if last < 0 || len(portions[last]) == batchItems || size+more > commitBytes {
			portions = append(portions, nil)
			last, size = last+1, 0
		}
		portions[last] = append(portions[last], result)
		size += more
	}
	return portions
}

func isFailure(result *runlanev1.ToolResult) bool {
	return result.Outcome != runlanev1.ToolResult_OUTCOME_OK
}

func anyService(err error) bool {
	var told *Error
	return errors.As(err, &told) && !errors.Is(err, errLost)
}
