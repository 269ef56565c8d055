// Package runlane is the client of Runlane, a durable session server for AI agents.
//
// A [Client] is a connection. A [SessionManager] works on one session: it submits, steers,
// answers, interrupts, and streams what happens. A [SessionHistory] reads what was and forks
// it. An [Executor] runs agents.
//
//	client, err := runlane.New("127.0.0.1:7480")
//	...
//	manager := runlane.NewSessionManager(client, "first", runlane.WithAgent("echo"))
//	result, err := manager.Run(ctx, runlane.Start, runlane.Text("hello"))
//
// Messages of the contract are used as they are generated, from package runlanev1. What a
// method of this package does not offer is had from the stubs of a [Client], with the same
// deadlines, repeats and errors.
//
// Every call has a deadline: that of its context, else the client's. A call that finds the
// server away is made again until then, with the same request id, so that it happens once.
//
// Errors of the service are [*Error]; errors.Is tells their [Reason]:
//
//	if errors.Is(err, runlane.SessionBusy) { ... }
package runlane
