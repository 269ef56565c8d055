"""What the server tells those who watch it."""

from runlane_server.observability.metrics import MetricsServer

__all__ = ["MetricsServer"]
