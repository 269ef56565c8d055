package runlane

import (
	"context"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const tokenOpen = "the executor stopped; whether the other system was reached is open"

// waitFor suspends with an external wait, and hands the token to the tool once the run waits.
// Where that fails, nobody else can complete the wait: so it is completed here, with the error,
// and the run goes on. The lease is over by then.
func (b *batch) waitFor(
	operations []*runlanev1.Operation, prompt *runlanev1.Prompt, call *batchCall,
) error {
	err := b.commit(operations, suspend(promptWait(prompt)))
	if err != nil || b.externalToken == "" {
		return err
	}
	token := b.externalToken
	handing := call.plan
	with := *handing.call
	with.ExternalToken = token
	handing.call = &with
	// Its work is no longer that of the lease, which is over; a stop of the executor ends it.
	result := b.lease.runTool(b.lease.stop, handing, b.run.GetOptions().GetToolTimeoutDuration().AsDuration())
	switch {
	case result == nil:
		b.settleExternal(token, tokenOpen, parting)
	case isFailure(result):
		problem := clean(TextOf(result.Content), reasonBytes)
		if problem == "" {
			problem = "the tool failed"
		}
		b.settleExternal(token, problem, outage)
	}
	return nil
}

func (b *batch) settleExternal(token, problem string, limit time.Duration) {
	ctx, cancel := context.WithTimeout(b.lease.calls, limit)
	defer cancel()
	_, err := b.lease.client.Sessions.CompleteExternal(ctx, &runlanev1.CompleteExternalRequest{
		Token: token, Answer: &runlanev1.ExternalAnswer{
			Outcome: &runlanev1.ExternalAnswer_Error{Error: problem},
		},
	})
	if err != nil {
		// The other system may have been quicker, or the run has ended.
		b.lease.log.Warn("an external wait stays as it is", "error", err)
	}
}
