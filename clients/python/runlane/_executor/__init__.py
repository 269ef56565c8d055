"""The executor: leases activations, asks models, commits what they answer."""

from runlane._executor.loop import Executor
from runlane._executor.mcp import McpTools
from runlane._executor.model import (
    Agent,
    Compaction,
    Model,
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelResponse,
    StreamingModel,
)
from runlane._executor.tools import (
    ChildRun,
    Tool,
    ToolContext,
    ToolError,
    ToolSource,
    ToolSpec,
    tool,
)

__all__ = [
    "Agent",
    "ChildRun",
    "Compaction",
    "Executor",
    "McpTools",
    "Model",
    "ModelDelta",
    "ModelError",
    "ModelRequest",
    "ModelResponse",
    "StreamingModel",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolSource",
    "ToolSpec",
    "tool",
]
