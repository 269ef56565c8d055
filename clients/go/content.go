package runlane

import (
	"strings"

	"github.com/runlane/runlane/clients/go/runlanev1"
)

// Text returns content that is one text.
func Text(text string) []*runlanev1.Block { return []*runlanev1.Block{TextBlock(text)} }

// TextBlock returns a block of text.
func TextBlock(text string) *runlanev1.Block {
	return &runlanev1.Block{Block: &runlanev1.Block_Text{Text: text}}
}

// ToolUseBlock returns a block that asks for a tool. What is no JSON object is passed on as the
// text that it is, and the call gets an error for its result.
func ToolUseBlock(id, name, arguments string) *runlanev1.Block {
	return &runlanev1.Block{Block: &runlanev1.Block_ToolUse{ToolUse: &runlanev1.ToolUse{
		ToolCallId: id, Name: name,
		Arguments: &runlanev1.ToolUse_ArgumentsJson{ArgumentsJson: arguments},
	}}}
}

// TextOf returns the texts of some content, one after the other; those inside of tool results
// too.
func TextOf(content []*runlanev1.Block) string {
	var text strings.Builder
	for _, block := range content {
		text.WriteString(block.GetText())
		text.WriteString(TextOf(block.GetToolResult().GetContent()))
	}
	return text.String()
}
