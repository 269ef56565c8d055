package runlane

import (
	"context"
	"errors"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	// Calls of one claim, of one prompt, and results of one commit.
	batchItems = 64
	// Results that come within this time of each other are committed as one.
	resultLinger = 50 * time.Millisecond
	commitBytes  = 2 << 20
	leftUnrun    = "the executor stopped before this was run"
)

// A batchCall is a call of the batch; result is known once it was committed here or came so.
type batchCall struct {
	record  *runlanev1.ToolCall
	settled bool
	result  *runlanev1.ToolResult
	plan    plan
}

// A batch brings the calls of one model step to their results: claimed before the effect,
// committed after it.
type batch struct {
	lease    *lease
	run      *runlanev1.Run
	box      *toolbox
	stops    bool
	approved map[string]bool
	calls    []*batchCall
	byID     map[string]*batchCall
	// Results of calls that were run, until they are committed.
	unsent []*runlanev1.ToolResult
	// Calls that were claimed and not begun.
	claimed       []string
	externalToken string

	messageNumber int64
	delivered     []*runlanev1.Message
	grant         *runlanev1.ReserveModelStepResult
}

func newBatch(l *lease, leased *runlanev1.LeasedActivation, box *toolbox) *batch {
	b := &batch{
		lease: l, run: leased.Run, box: box,
		stops: leased.Run.GetOptions().GetToolErrorPolicy() ==
			runlanev1.ToolErrorPolicy_TOOL_ERROR_POLICY_STOP,
		approved: map[string]bool{}, byID: map[string]*batchCall{},
	}
	for _, interaction := range leased.AnsweredInteractions {
		for _, decision := range interaction.GetAnswer().GetPermission().GetDecisions() {
			b.approved[decision.ToolCallId] =
				decision.Verdict == runlanev1.Decision_VERDICT_APPROVE
		}
	}
	return b
}

// take takes the calls as the server has them, and the number of their message.
func (b *batch) take(records []*runlanev1.ToolCall, messageNumber int64) {
	b.messageNumber = messageNumber
	for _, record := range records {
		call := &batchCall{
			record: record, result: record.Result,
			settled: record.State != runlanev1.ToolCall_STATE_PREPARED,
		}
		b.calls = append(b.calls, call)
		b.byID[record.ToolCallId] = call
	}
}

// open commits the step that asks for the calls, and with it all that can be at once.
func (b *batch) open(step *runlanev1.CommitModelStep, number int32) error {
	var drafts []*runlanev1.ToolCall
	for _, block := range step.Content {
		use := block.GetToolUse()
		if use == nil {
			continue
		}
		draft := &runlanev1.ToolCall{
			ToolCallId: use.ToolCallId, Name: use.Name, Step: number,
			ArgumentsJson: use.GetArgumentsJson(), State: runlanev1.ToolCall_STATE_PREPARED,
		}
		if _, malformed := use.Arguments.(*runlanev1.ToolUse_ArgumentsText); malformed {
			draft.State = runlanev1.ToolCall_STATE_COMMITTED
		}
		drafts = append(drafts, draft)
	}
	b.take(drafts, 0)
	return b.advance([]*runlanev1.Operation{{
		Operation: &runlanev1.Operation_CommitModelStep{CommitModelStep: step},
	}})
}

// advance settles what needs no run, claims and runs what may, and asks for the rest. head is
// the step that opens the batch, where it is not open yet.
func (b *batch) advance(head []*runlanev1.Operation) error {
	running, settled, starts := b.plan()
	failing := b.stops && len(settled) > 0
	if failing {
		running, starts = nil, nil
	}
	claims := claimsOf(running)
	portions := portionsOf(settled)
	if len(running) == 0 && len(portions) < 2 && len(starts) == 0 {
		return b.commitLast(append(append(head, claims...), results(settled)...), len(settled) > 0)
	}
	if err := b.begin(head, claims, portions, starts); err != nil {
		if b.lease.check() == errStopping {
			return b.partUnrun(err)
		}
		return err
	}
	if b.lease.over {
		return nil
	}
	if len(running) > 0 {
		return b.runAll(running)
	}
	return b.commitLast(nil, false)
}

// plan decides what is to be done with each call that is open.
func (b *batch) plan() (
	running []*batchCall, settled []*runlanev1.ToolResult, starts []*runlanev1.StartChildRun,
) {
	allowed := b.run.GetOptions().GetTools()
	for _, call := range b.calls {
		if call.settled {
			continue
		}
		key := call.record.ToolCallId
		call.plan = b.box.plan(call.record, allowed, b.approved[key], b.toolCall(call.record))
		switch made := call.plan; {
		case made.settle != nil:
			settled = append(settled, made.settle)
		case made.run:
			running = append(running, call)
		case made.start != nil:
			starts = append(starts, made.start)
		}
	}
	return running, settled, starts
}

func (b *batch) toolCall(record *runlanev1.ToolCall) *ToolCall {
	return &ToolCall{
		ID: record.ToolCallId, Name: record.Name, Arguments: []byte(record.ArgumentsJson),
		Agent: b.run.Agent, SessionID: b.lease.fence.SessionId, RunID: b.lease.fence.RunId,
		Step: record.Step, Attempt: b.lease.fence.Epoch,
	}
}

// begin commits what comes before anything is run.
func (b *batch) begin(
	head, claims []*runlanev1.Operation, portions [][]*runlanev1.ToolResult,
	starts []*runlanev1.StartChildRun,
) error {
	first := head
	if len(starts) == 0 {
		first = append(first, claims...)
	}
	if len(portions) > 0 {
		first = append(first, results(portions[0])...)
		portions = portions[1:]
	}
	commits := [][]*runlanev1.Operation{first}
	for _, portion := range portions {
		commits = append(commits, results(portion))
	}
	for _, operations := range commits {
		if len(operations) == 0 {
			continue
		}
		if err := b.commit(operations, nil); err != nil || b.lease.over {
			return err
		}
	}
	for _, start := range starts {
		if err := b.startChild(start); err != nil || b.lease.over {
			return err
		}
	}
	if len(starts) > 0 && len(claims) > 0 {
		return b.commit(claims, nil)
	}
	return nil
}

// startChild starts a child run; where that is refused, the model is told so.
func (b *batch) startChild(start *runlanev1.StartChildRun) error {
	err := b.commit([]*runlanev1.Operation{{
		Operation: &runlanev1.Operation_StartChildRun{StartChildRun: start},
	}}, nil)
	if !anyOf(err, AgentNotFound, FieldInvalid, InputEmpty, MessageTooLarge, OperationInvalid) {
		return err
	}
	var told *Error
	errors.As(err, &told)
	b.lease.log.Warn("a child run was refused", "reason", told.Reason)
	text := "the child run could not be started: " + string(told.Reason)
	return b.commit(results([]*runlanev1.ToolResult{errorResult(start.ToolCallId, text)}), nil)
}

// runAll runs claimed calls beside each other and commits their results as they come.
func (b *batch) runAll(running []*batchCall) error {
	switch cause := b.lease.check(); cause {
	case nil:
	case errCancelRequested:
		b.leaveUnrun(runlanev1.ToolResult_OUTCOME_CANCELLED,
			"the run was cancelled before this was run")
		return b.giveUp()
	default:
		return b.partUnrun(cause)
	}
	b.claimed = nil
	ctx, stop := context.WithCancelCause(b.lease.work)
	defer stop(errLost)
	done := make(chan *runlanev1.ToolResult, len(running))
	limit := b.run.GetOptions().GetToolTimeoutDuration().AsDuration()
	for _, call := range running {
		go func() { done <- b.lease.runTool(ctx, call.plan, limit) }()
	}
	for open := len(running); ; {
		// Under STOP the first failure ends the run: then all results go together.
		open -= b.collect(done, open)
		if cause := b.lease.check(); cause != nil {
			return b.halt(done, open, cause)
		}
		if open == 0 {
			return b.finishRunning()
		}
		for _, portion := range portionsOf(b.unsent) {
			if err := b.commit(results(portion), nil); err != nil {
				if anyService(err) {
					// What was to follow the results was refused, and they with it.
					stop(errLost)
					b.drainResults(done, open)
					b.part()
				}
				return err
			}
			if b.lease.over {
				return nil
			}
		}
	}
}

// collect waits for results: the first and those close behind it, or all, or until the work has
// to stop. It returns how many calls ended.
func (b *batch) collect(done <-chan *runlanev1.ToolResult, open int) int {
	var linger <-chan time.Time
	for count := 0; ; {
		select {
		case result := <-done:
			b.keep(result)
			if count++; count == open {
				return count
			}
			if linger == nil && !b.stops {
				linger = time.After(resultLinger)
			}
		case <-linger:
			return count
		case <-b.lease.work.Done():
			return count
		}
	}
}

func (b *batch) keep(result *runlanev1.ToolResult) {
	if result != nil {
		b.unsent = append(b.unsent, result)
	}
}

// drainResults waits for what was told to stop, and keeps the results that there are all the
// same.
func (b *batch) drainResults(done <-chan *runlanev1.ToolResult, open int) {
	for range open {
		b.keep(<-done)
	}
}

// halt ends work that has to stop.
func (b *batch) halt(done <-chan *runlanev1.ToolResult, open int, cause error) error {
	b.drainResults(done, open)
	switch cause {
	case errCancelRequested:
		return b.giveUp()
	case errStopping:
		b.part()
	}
	return cause
}

func (b *batch) finishRunning() error {
	failures := 0
	if b.stops {
		// The first failure that is committed ends the run: by then the others are.
		var ok, bad []*runlanev1.ToolResult
		for _, result := range b.unsent {
			if isFailure(result) {
				bad = append(bad, result)
			} else {
				ok = append(ok, result)
			}
		}
		b.unsent = append(ok, bad...)
	}
	for _, result := range b.unsent {
		if isFailure(result) {
			failures++
		}
	}
	portions := portionsOf(b.unsent)
	if len(portions) == 0 {
		return b.commitLast(nil, false)
	}
	for _, portion := range portions[:len(portions)-1] {
		if err := b.commit(results(portion), nil); err != nil || b.lease.over {
			return err
		}
	}
	return b.commitLast(results(portions[len(portions)-1]), failures > 0)
}

// leaveUnrun gives results to calls that were claimed and not begun: nothing of them is open.
func (b *batch) leaveUnrun(outcome runlanev1.ToolResult_Outcome, text string) {
	for _, key := range b.claimed {
		result := errorResult(key, text)
		result.Outcome = outcome
		b.unsent = append(b.unsent, result)
	}
	b.claimed = nil
}

// partUnrun ends work before anything was run; it returns the cause.
func (b *batch) partUnrun(cause error) error {
	if cause != errLost {
		b.leaveUnrun(runlanev1.ToolResult_OUTCOME_ERROR, leftUnrun)
		b.part()
	}
	return cause
}

// giveUp keeps what has a result, and settles a run that is cancelled.
func (b *batch) giveUp() error {
	portions := portionsOf(b.unsent)
	var last []*runlanev1.ToolResult
	if len(portions) > 0 {
		last = portions[len(portions)-1]
		for _, portion := range portions[:len(portions)-1] {
			if _, err := b.lease.commit(results(portion), nil, outage, b.taken); err != nil {
				return err
			}
		}
	}
	_, err := b.lease.commit(results(last), cancelled(), outage, b.taken)
	return err
}

// part keeps what has a result where the work ends here.
func (b *batch) part() {
	for _, portion := range portionsOf(b.unsent) {
		if b.lease.over {
			return
		}
		if _, err := b.lease.commit(results(portion), nil, parting, b.taken); err != nil {
			b.lease.log.Warn("results of a run are lost", "error", err)
			return
		}
	}
}

// closed tells whether every call has its result.
func (b *batch) closed() bool {
	for _, call := range b.calls {
		if !call.settled {
			return false
		}
	}
	return true
}

// messages returns the result messages after a number; false where they must be read.
func (b *batch) messages(after int64) ([]*runlanev1.Message, bool) {
	var found []*runlanev1.Message
	for ordinal, call := range b.calls {
		number := b.messageNumber + int64(ordinal) + 1
		if number <= after {
			continue
		}
		if call.result == nil {
			return nil, false
		}
		found = append(found, &runlanev1.Message{
			Number: number, SessionId: b.lease.fence.SessionId, RunId: b.lease.fence.RunId,
			Role: runlanev1.Message_ROLE_TOOL, Author: runlanev1.Message_AUTHOR_TOOL,
			Step:    call.record.Step,
			Content: []*runlanev1.Block{{Block: &runlanev1.Block_ToolResult{ToolResult: call.result}}},
		})
	}
	return found, true
}
