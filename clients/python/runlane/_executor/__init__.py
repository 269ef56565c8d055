"""The executor: leases activations, asks models, commits what they answer."""

from runlane._executor.loop import Executor
from runlane._executor.model import (
    Agent,
    Model,
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelResponse,
    StreamingModel,
)

__all__ = [
    "Agent",
    "Executor",
    "Model",
    "ModelDelta",
    "ModelError",
    "ModelRequest",
    "ModelResponse",
    "StreamingModel",
]
