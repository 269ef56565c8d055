// An agent with a tool, a session with it, and a fork of that session.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/runlane/runlane/clients/go"
	"github.com/runlane/runlane/clients/go/runlanev1"
)

// count is a tool. It is claimed before it runs and its result is committed after it; had it an
// effect, it would never have it twice.
var count = runlane.Tool{
	Name:        "count",
	Description: "Counts the words of a text.",
	Schema:      []byte(`{"type": "object", "properties": {"text": {"type": "string"}}}`),
	Run: func(_ context.Context, call *runlane.ToolCall) ([]*runlanev1.Block, error) {
		var arguments struct{ Text string }
		if err := call.Bind(&arguments); err != nil {
			return nil, err
		}
		return runlane.Text(fmt.Sprint(len(strings.Fields(arguments.Text)))), nil
	},
}

// answer stands for a model: it asks for the tool, and then tells what that said.
func answer(_ context.Context, turn *runlane.Turn) (*runlane.Reply, error) {
	if turn.Messages[len(turn.Messages)-1].Role == runlanev1.Message_ROLE_TOOL {
		text := "That has " + turn.Last() + " words."
		turn.Stream(text) // for those who watch; what is returned is stored
		return runlane.Say(text), nil
	}
	arguments := fmt.Sprintf(`{"text": %q}`, turn.Last())
	return &runlane.Reply{Content: []*runlanev1.Block{
		runlane.ToolUseBlock("1", "count", arguments),
	}}, nil
}

func main() {
	target := "127.0.0.1:7480"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	if err := play(context.Background(), target); err != nil {
		log.Fatal(err)
	}
}

func play(ctx context.Context, target string) error {
	client, err := runlane.New(target)
	if err != nil {
		return err
	}
	defer client.Close()

	agent := runlane.Agent{
		Name: "counter", Model: runlane.ModelFunc(answer), Tools: []runlane.Tool{count},
	}
	executor, err := runlane.NewExecutor(client, []runlane.Agent{agent})
	if err != nil {
		return err
	}
	go executor.Run(ctx) // anywhere, in any process, on any machine
	defer executor.Drain(ctx)

	manager := runlane.NewSessionManager(client, "first-"+executor.ID(), runlane.WithAgent("counter"))
	events, err := manager.Events(ctx, runlane.WithMessages())
	if err != nil {
		return err
	}
	defer events.Close()
	submitted, err := manager.Submit(ctx, runlane.Start, runlane.Text("to be or not to be"))
	if err != nil {
		return err
	}
	for item, err := range events.All() { // goes on by itself where a connection is lost
		if err != nil {
			return err
		}
		if message := item.Event.GetMessage(); message != nil {
			fmt.Println(message.Role, runlane.TextOf(message.Content))
		}
		if item.Event.GetType() == runlanev1.Event_TYPE_RUN_TERMINAL {
			break
		}
	}

	_, err = manager.Submit(ctx, runlane.Steer, runlane.Text("too late"))
	fmt.Println("nothing runs:", errors.Is(err, runlane.SessionIdle))

	history := runlane.NewSessionHistory(client)
	fork, err := history.Fork(ctx, submitted.Submission.RunId,
		runlane.WithForkInput(runlane.Text("that is the question"), nil))
	if err != nil {
		return err
	}
	result, err := client.WaitRun(ctx, fork.Submission.RunId, "")
	if err != nil {
		return err
	}
	fmt.Println("the fork:", result.Text())
	return nil
}
