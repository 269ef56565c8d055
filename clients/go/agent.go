package runlane

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// An Agent is a name that an executor polls for, and what answers for it.
type Agent struct {
	// Name is the name.
	Name string
	// Model is asked for each step of a run.
	Model Model
	// ModelName is handed to the model where the run names none.
	ModelName string
	// Tools are what the model may ask for.
	Tools []Tool
}

// A Model answers one step after the other.
type Model interface {
	// Reply returns the answer to a turn. The context ends where the run is cancelled, or the
	// lease lost: return then. A [*ModelError] ends the run as the error says; any other error
	// ends it FAILED with EXECUTOR_ERROR and the error's type alone, since its text may hold
	// what callers must not see.
	Reply(ctx context.Context, turn *Turn) (*Reply, error)
}

// A ModelFunc is a function that is a model.
type ModelFunc func(ctx context.Context, turn *Turn) (*Reply, error)

// Reply calls the function.
func (f ModelFunc) Reply(ctx context.Context, turn *Turn) (*Reply, error) { return f(ctx, turn) }

// A Turn is one request to a model.
type Turn struct {
	// Run is the run as it was leased: agent, session, options.
	Run *runlanev1.Run
	// Messages is what the model is to see, in order; not to be changed.
	Messages []*runlanev1.Message
	// Summary stands for messages before those; nil where there are none before.
	Summary *runlanev1.Summary
	// Model is the model to use: that of the run, else that of the agent; may be empty.
	Model string
	// Tools is what the model may ask for.
	Tools []Tool
	// Step is the model step, from 1 in its run; Attempt the attempt.
	Step, Attempt int32
	// ModelStreamID names what is streamed for this step. It stays the same where the step is
	// asked again before it was committed.
	ModelStreamID string

	publisher *publisher
}

// Last returns the text of the newest message.
func (t *Turn) Last() string {
	if len(t.Messages) == 0 {
		return ""
	}
	return TextOf(t.Messages[len(t.Messages)-1].Content)
}

// Stream shows a piece of the answer's first block to those who watch; best effort, and never
// stored: the [Reply] is.
func (t *Turn) Stream(text string) { t.StreamBlock(0, runlanev1.Delta_KIND_TEXT, text) }

// StreamBlock does so for any block, from 0, and kind.
func (t *Turn) StreamBlock(block int32, kind runlanev1.Delta_Kind, text string) {
	if t.publisher != nil {
		t.publisher.push(block, kind, text)
	}
}

// A Reply is the whole answer of a model. One that asks for no tool is final.
type Reply struct {
	// Content holds its blocks, with [ToolUseBlock] for each tool that it asks for.
	Content []*runlanev1.Block
	// Usage is what it used.
	Usage *runlanev1.Usage
	// Model is the model that answered.
	Model string
	// FinishReason is why it stopped, in its provider's word.
	FinishReason string
	// OutputJSON is JSON as the result of the run; empty means none.
	OutputJSON string
}

// Say returns a final answer that is one text.
func Say(text string) *Reply { return &Reply{Content: Text(text)} }

// A ModelError ends a run as failed by its model; its text is kept with the run.
type ModelError struct {
	// Reason is MODEL_UNAVAILABLE or MODEL_REFUSED.
	Reason runlanev1.RunFailure_Reason
	// Message is text for people.
	Message string
	// Retryable tells whether the same input may well succeed later.
	Retryable bool
}

// Error returns the text.
func (e *ModelError) Error() string { return e.Reason.String() + ": " + e.Message }

// ModelUnavailable says that the model could not be reached; worth another try later.
func ModelUnavailable(format string, arguments ...any) *ModelError {
	return &ModelError{
		runlanev1.RunFailure_REASON_MODEL_UNAVAILABLE, fmt.Sprintf(format, arguments...), true,
	}
}

// ModelRefused says that the model, or its provider, refuses the request.
func ModelRefused(format string, arguments ...any) *ModelError {
	return &ModelError{
		runlanev1.RunFailure_REASON_MODEL_REFUSED, fmt.Sprintf(format, arguments...), false,
	}
}

// A Policy says whether calls of a tool may run.
type Policy int

// The policies.
const (
	// Allow lets calls run.
	Allow Policy = iota
	// AskFirst waits for a person's word on each call.
	AskFirst
	// Deny rejects calls, and does not tell the model of the tool.
	Deny
)

// A Tool is what a model may ask for. One of Run, Ask and Delegate says how a call gets its
// result; external waits have Ask and Run.
type Tool struct {
	// Name is its name, Description says to the model what it does.
	Name, Description string
	// Schema is the JSON Schema of its arguments, an object.
	Schema json.RawMessage
	// Idempotent tools may be run again where a result was lost. Others are never run twice
	// for one call: a lost result ends the run OUTCOME_UNKNOWN.
	Idempotent bool
	// Policy says whether calls may run.
	Policy Policy
	// Timeout is how long a call may run; 0: no limit. That of the run's options comes first.
	Timeout time.Duration
	// Run does the work: it is called after the call was claimed, and what it returns is
	// committed. Its error is told to the model, with what it returned beside it instead, where
	// it did. The context ends where the run is cancelled or the lease lost.
	Run func(ctx context.Context, call *ToolCall) ([]*runlanev1.Block, error)
	// Ask returns what a call waits for: a [Question], a [Form], or an [External] wait; the
	// answer is its result. For an external wait Run then hands on ToolCall.ExternalToken.
	Ask func(call *ToolCall) (*runlanev1.Prompt, error)
	// Delegate returns the child run that answers a call; its tool_call_id is filled in.
	Delegate func(call *ToolCall) (*runlanev1.StartChildRun, error)
}

// A ToolCall is one call of a tool.
type ToolCall struct {
	// ID names the call. With RunID it is the same however often the call is run, so it makes a
	// key for systems that take one.
	ID string
	// Name is the tool.
	Name string
	// Arguments is the JSON object that the model wrote, byte for byte.
	Arguments json.RawMessage
	// Agent, SessionID and RunID tell whose call it is.
	Agent, SessionID, RunID string
	// Step is the model step that asked, Attempt the attempt.
	Step, Attempt int32
	// ExternalToken is the secret that completes an external wait; only there.
	ExternalToken string
}

// Bind reads the arguments into a value, as encoding/json does.
func (c *ToolCall) Bind(into any) error { return json.Unmarshal(c.Arguments, into) }

// Question returns a prompt that is answered with text; options are for display.
func Question(text string, options ...string) *runlanev1.Prompt {
	return &runlanev1.Prompt{Kind: &runlanev1.Prompt_Question{
		Question: &runlanev1.QuestionPrompt{Text: text, Options: options},
	}}
}

// Form returns a prompt that is answered with JSON that fits a schema.
func Form(text, schema string) *runlanev1.Prompt {
	return &runlanev1.Prompt{Kind: &runlanev1.Prompt_Form{
		Form: &runlanev1.FormPrompt{Text: text, JsonSchema: schema},
	}}
}

// External returns a wait for another system.
func External(reason string) *runlanev1.Prompt {
	return &runlanev1.Prompt{Kind: &runlanev1.Prompt_External{
		External: &runlanev1.ExternalPrompt{Reason: reason},
	}}
}
