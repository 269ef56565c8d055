"""The models of the server's own executor."""

from runlane_server.executors.models.factory import ServerModel, build_model
from runlane_server.executors.models.openai import OpenAIModel
from runlane_server.executors.models.scripted import ScriptedModel

__all__ = ["OpenAIModel", "ScriptedModel", "ServerModel", "build_model"]
