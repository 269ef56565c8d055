package runlane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	questionBytes = 16 << 10
	optionBytes   = 1 << 10
	optionsMax    = 64
	schemaBytes   = 64 << 10
	reasonBytes   = 4 << 10
)

// A toolbox is an agent with its tools by name.
type toolbox struct {
	agent Agent
	tools map[string]*Tool
}

func newToolbox(agent Agent) (*toolbox, error) {
	if agent.Model == nil {
		return nil, fmt.Errorf("agent %q has no model", agent.Name)
	}
	box := &toolbox{agent: agent, tools: map[string]*Tool{}}
	for place := range agent.Tools {
		tool := &agent.Tools[place]
		switch {
		case tool.Name == "" || len(tool.Name) > nameBytes:
			return nil, fmt.Errorf("a tool of %q has a name of %d bytes", agent.Name, len(tool.Name))
		case box.tools[tool.Name] != nil:
			return nil, fmt.Errorf("two tools of %q are named %q", agent.Name, tool.Name)
		case tool.Run == nil && tool.Ask == nil && tool.Delegate == nil:
			return nil, fmt.Errorf("tool %q has neither Run nor Ask nor Delegate", tool.Name)
		case tool.Delegate != nil && (tool.Run != nil || tool.Ask != nil):
			return nil, fmt.Errorf("tool %q has Delegate, which goes alone", tool.Name)
		}
		box.tools[tool.Name] = tool
	}
	return box, nil
}

// offered returns what a model is told of: all that is not denied, and that the run allows.
func (b *toolbox) offered(allowed []string) []Tool {
	var offered []Tool
	for _, tool := range b.agent.Tools {
		if tool.Policy != Deny && (len(allowed) == 0 || slices.Contains(allowed, tool.Name)) {
			offered = append(offered, tool)
		}
	}
	return offered
}

// A plan is what is to be done with a call that has no result; one of settle, run, ask, prompt
// and delegate.
type plan struct {
	tool *Tool
	call *ToolCall
	// It has its result without being run.
	settle *runlanev1.ToolResult
	// It is to be claimed and run.
	run bool
	// A person decides whether it may run.
	ask bool
	// A person or another system gives the result.
	prompt *runlanev1.Prompt
	// A child run answers it; start is nil where it was started before.
	delegate bool
	start    *runlanev1.StartChildRun
}

// plan decides what is to be done with a call.
func (b *toolbox) plan(
	record *runlanev1.ToolCall, allowed []string, approved bool, call *ToolCall,
) plan {
	key := record.ToolCallId
	if record.ChildRunId != "" {
		return plan{delegate: true}
	}
	tool := b.tools[record.Name]
	if tool == nil || len(allowed) > 0 && !slices.Contains(allowed, record.Name) {
		return plan{settle: errorResult(key, fmt.Sprintf("there is no tool named %q", record.Name))}
	}
	if tool.Policy == Deny {
		told := fmt.Sprintf("the tool %q may not be used here", record.Name)
		rejected := errorResult(key, told)
		rejected.Outcome = runlanev1.ToolResult_OUTCOME_REJECTED
		return plan{settle: rejected}
	}
	if !isObject(record.ArgumentsJson) {
		return plan{settle: errorResult(key, "the arguments are no JSON object")}
	}
	made := plan{tool: tool, call: call}
	var err error
	switch {
	case tool.Policy == AskFirst && !approved:
		made.ask = true
	case tool.Delegate != nil:
		made.delegate = true
		made.start, err = asked(tool.Delegate, call)
		if err == nil {
			made.start = proto.CloneOf(made.start)
			made.start.ToolCallId = key
		}
	case tool.Ask != nil:
		if made.prompt, err = asked(tool.Ask, call); err == nil {
			made.prompt, err = checkedPrompt(key, made.prompt, tool)
		}
	default:
		made.run = true
	}
	if err != nil {
		return plan{settle: errorResult(key, err.Error())}
	}
	return made
}

// asked calls what is the application's; a panic, or nothing, is an error.
func asked[T any](ask func(*ToolCall) (*T, error), call *ToolCall) (found *T, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = &panicError{panicked}
		}
	}()
	if found, err = ask(call); err == nil && found == nil {
		err = errors.New("the tool asked for nothing")
	}
	return found, err
}

// checkedPrompt returns a prompt such as the service takes, bound to its call.
func checkedPrompt(key string, given *runlanev1.Prompt, tool *Tool) (*runlanev1.Prompt, error) {
	prompt := proto.CloneOf(given)
	switch kind := prompt.Kind.(type) {
	case *runlanev1.Prompt_External:
		if tool.Run == nil {
			return nil, errors.New("an external wait needs Run, which hands on the token")
		}
		kind.External.Reason = clean(kind.External.Reason, reasonBytes)
		kind.External.ToolCallId = key
	case *runlanev1.Prompt_Form:
		kind.Form.Text = clean(kind.Form.Text, 0)
		kind.Form.ToolCallId = key
		size := len(kind.Form.JsonSchema)
		if len(kind.Form.Text) > questionBytes || size == 0 || size > schemaBytes {
			return nil, errors.New("a form has a text of at most 16 KiB and a schema of at most 64")
		}
	case *runlanev1.Prompt_Question:
		question := kind.Question
		question.Text = clean(question.Text, 0)
		question.ToolCallId = key
		if strings.TrimSpace(question.Text) == "" || len(question.Text) > questionBytes {
			return nil, errors.New("a question has a text of at most 16 KiB")
		}
		for place, option := range question.Options {
			question.Options[place] = strings.TrimSpace(clean(option, 0))
			if size := len(question.Options[place]); size == 0 || size > optionBytes {
				return nil, errors.New("an option has 1 byte to 1 KiB")
			}
		}
		slices.Sort(question.Options)
		if question.Options = slices.Compact(question.Options); len(question.Options) > optionsMax {
			return nil, errors.New("a question has at most 64 options")
		}
	default:
		return nil, errors.New("a tool asks a question, for a form, or waits for another system")
	}
	return prompt, nil
}

// runTool runs a call that was claimed, or hands on a token. It returns nil where the work was
// stopped before there was a result: whether it had its effect is open.
func (l *lease) runTool(
	ctx context.Context, made plan, limit time.Duration,
) *runlanev1.ToolResult {
	key := made.call.ID
	if limit == 0 {
		limit = made.tool.Timeout
	}
	timed, cancel := ctx, context.CancelFunc(func() {})
	if limit > 0 {
		timed, cancel = context.WithTimeout(ctx, limit)
	}
	defer cancel()
	content, err := await(l, timed, func(ctx context.Context) ([]*runlanev1.Block, error) {
		return made.tool.Run(ctx, made.call)
	})
	switch {
	case err == nil && made.call.ExternalToken != "":
		// What is returned where another system gives the result may be anything.
		return toolResult(key, runlanev1.ToolResult_OUTCOME_OK, nil)
	case err == nil:
		return checkedResult(key, runlanev1.ToolResult_OUTCOME_OK, content)
	case ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))):
		return nil
	case timed.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		return errorResult(key, fmt.Sprintf(
			"the tool did not end within %v; whether it had its effect is open", limit))
	}
	l.log.Info("a tool failed", "tool", made.tool.Name, "error_type", fmt.Sprintf("%T", err))
	if len(content) > 0 {
		return checkedResult(key, runlanev1.ToolResult_OUTCOME_ERROR, content)
	}
	return errorResult(key, err.Error())
}
