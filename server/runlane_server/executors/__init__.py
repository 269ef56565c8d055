"""The embedded executor and the models that it serves."""

from runlane_server.executors.embedded import EMBEDDED_PREFIX, EmbeddedExecutor

__all__ = ["EMBEDDED_PREFIX", "EmbeddedExecutor"]
