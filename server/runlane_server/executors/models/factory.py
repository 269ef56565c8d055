"""From settings to models."""

import os
from collections.abc import Mapping
from typing import Protocol

from runlane import StreamingModel

from runlane_server.executors.models.openai import OpenAIModel
from runlane_server.executors.models.scripted import ScriptedModel
from runlane_server.settings import ModelConfig, OpenAIModelConfig, SettingsError


class ServerModel(StreamingModel, Protocol):
    """A model that holds connections, or could."""

    async def aclose(self) -> None:
        """Closes what it holds."""
        ...


def build_model(
    config: ModelConfig,
    *,
    environ: Mapping[str, str] | None = None,
) -> ServerModel:
    """Makes the model that a configuration describes.

    Args:
        config: The configuration.
        environ: Where the key is looked up; None: the environment of the process.

    Raises:
        SettingsError: The key is not set, or the SDK is not installed.
    """
    if not isinstance(config, OpenAIModelConfig):
        return ScriptedModel(
            config.script,
            name=config.name,
            piece_characters=config.piece_characters,
        )
    key: str | None = None
    if config.api_key_env is not None:
        variables = os.environ if environ is None else environ
        key = variables.get(config.api_key_env)
        if not key:
            raise SettingsError(f"the environment variable {config.api_key_env} is not set")
    return OpenAIModel(
        config.name,
        base_url=config.base_url,
        api_key=key,
        timeout_seconds=config.timeout_seconds,
    )
