package runlane

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

const (
	blocksMax = 256
	// What one result may hold; all of a commit are at most 3 MiB.
	resultBytes = 1 << 20
	errorBytes  = 2048
	nameBytes   = 255
	idBytes     = 128
)

// clean takes out what the service does not take, and cuts to a number of bytes; 0: none.
func clean(text string, limit int) string {
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "")
	if limit == 0 || len(text) <= limit {
		return text
	}
	for !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

func toolResult(
	id string, outcome runlanev1.ToolResult_Outcome, content []*runlanev1.Block,
) *runlanev1.ToolResult {
	return &runlanev1.ToolResult{ToolCallId: id, Outcome: outcome, Content: content}
}

// errorResult makes the result of a call that went wrong.
func errorResult(id, text string) *runlanev1.ToolResult {
	return toolResult(id, runlanev1.ToolResult_OUTCOME_ERROR, Text(clean(text, errorBytes)))
}

// checkedResult makes the result of a call from what its tool returned. Texts are cut to what
// fits; what else is too large is an error.
func checkedResult(
	id string, outcome runlanev1.ToolResult_Outcome, content []*runlanev1.Block,
) *runlanev1.ToolResult {
	if len(content) > blocksMax {
		return errorResult(id, fmt.Sprintf(
			"the tool returned %d blocks; at most %d are taken", len(content), blocksMax))
	}
	size := 0
	for _, block := range content {
		if _, text := block.GetBlock().(*runlanev1.Block_Text); !text {
			size += proto.Size(block)
		}
	}
	if size > resultBytes {
		return errorResult(id, fmt.Sprintf(
			"the tool returned %d bytes; at most %d are taken", size, resultBytes))
	}
	taken := make([]*runlanev1.Block, len(content))
	for place, block := range content {
		taken[place] = block
		if _, text := block.GetBlock().(*runlanev1.Block_Text); text {
			// Texts share what the others leave.
			fitting := proto.CloneOf(block)
			fitting.Block = &runlanev1.Block_Text{Text: cutText(block.GetText(), resultBytes-size)}
			size += proto.Size(fitting)
			taken[place] = fitting
		}
	}
	return toolResult(id, outcome, taken)
}

func cutText(text string, room int) string {
	kept := clean(text, 0)
	if len(kept) <= max(room, 0) {
		return kept
	}
	note := fmt.Sprintf("\n[cut: the whole has %d bytes]", len(kept))
	return clean(kept, max(1, room-len(note))) + note
}

// settleUses returns content with the tool uses of an answer such as the service takes: ids that
// the model repeats within the run, or that are none, are replaced; arguments that are no JSON
// object are kept as text. always makes each id the step's own, where others of the run are not
// seen.
func settleUses(
	content []*runlanev1.Block, taken map[string]bool, step int32, always bool,
) []*runlanev1.Block {
	settled := make([]*runlanev1.Block, len(content))
	ordinal := 0
	for place, block := range content {
		settled[place] = block
		if block.GetToolUse() == nil {
			continue
		}
		ordinal++
		own := proto.CloneOf(block)
		settled[place] = own
		use := own.GetToolUse()
		given := use.ToolCallId
		if always {
			given = fmt.Sprintf("%s-%d", clean(given, idBytes-16), step)
		}
		use.ToolCallId = uniqueID(given, taken, fmt.Sprintf("call_%d_%d", step, ordinal))
		taken[use.ToolCallId] = true
		if use.Name = clean(use.Name, nameBytes); use.Name == "" {
			use.Name = "unnamed"
		}
		settleArguments(use)
	}
	return settled
}

func settleArguments(use *runlanev1.ToolUse) {
	text := use.GetArgumentsJson()
	if _, other := use.Arguments.(*runlanev1.ToolUse_ArgumentsText); other {
		text = use.GetArgumentsText()
	} else if text == "" {
		text = "{}"
	}
	if isObject(text) {
		use.Arguments = &runlanev1.ToolUse_ArgumentsJson{ArgumentsJson: text}
	} else {
		use.Arguments = &runlanev1.ToolUse_ArgumentsText{ArgumentsText: clean(text, 0)}
	}
}

// isObject tells whether a text is a JSON object. The text itself is what goes on: a number
// beyond 2^53, or 1.0, stays as it was written.
func isObject(text string) bool {
	data := bytes.TrimLeft([]byte(text), " \t\r\n")
	return len(data) > 0 && data[0] == '{' && utf8.Valid(data) && json.Valid(data)
}

func uniqueID(given string, taken map[string]bool, otherwise string) string {
	var kept strings.Builder
	for _, letter := range given {
		if !strings.ContainsRune(idLetters, letter) {
			letter = '-'
		}
		kept.WriteRune(letter)
	}
	base := strings.TrimLeft(kept.String(), "._:@-")
	base = base[:min(len(base), idBytes)]
	if base == "" {
		base = otherwise
	}
	if !taken[base] {
		return base
	}
	for count := 2; ; count++ {
		name := fmt.Sprintf("%s-%d", base[:min(len(base), idBytes-8)], count)
		if !taken[name] {
			return name
		}
	}
}

const idLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@-"
