"""Metrics for Prometheus, made of what the process counts when they are scraped.

The library's server answers in threads of its own; what they read is copied on the event
loop, where nothing changes meanwhile.
"""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import TimeoutError as LateError
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from runlane_server.app.service import App
from runlane_server.app.views import Gauges, ServerInfoView
from runlane_server.runtime.stats import Histogram, Stats

_SECONDS = 5.0
"""How long a scrape may wait for the event loop."""


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    count = 0
    for bound, more in zip((*histogram.bounds, None), histogram.counts, strict=True):
        count += more
        found.append(("+Inf" if bound is None else str(float(bound)), count))
    return found


def _histogram(name: str, told: str, histogram: Histogram) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, told, _buckets(histogram), histogram.total)


def families(now: Gauges, info: ServerInfoView, stats: Stats) -> Iterator[Metric]:
    """Gives the metrics of a server."""
    yield from _states(now, info)
    yield from _counts(stats)


def _states(now: Gauges, info: ServerInfoView) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "runlane_build_info", "Always 1.", labels=("version", "store", "store_epoch")
    )
    build.add_metric((info.version, info.store_kind, str(info.store_epoch)), 1)
    yield build
    for name, told, value in (
        ("runlane_store_up", "Whether the store takes writes: 1 or 0.", not now.store_away),
        (
            "runlane_commit_queue_length",
            "Writes that wait for a transaction.",
            now.writes_waiting,
        ),
        ("runlane_hot_sessions", "Sessions whose state is kept in memory.", now.hot_sessions),
        ("runlane_streams", "Event streams that are open.", now.streams),
        ("runlane_waits", "Calls that wait for the end of a run.", now.waits),
        ("runlane_leases", "Activations that executors have.", now.leases),
        ("runlane_activations_queued", "Activations that wait for an executor.", now.queued),
        (
            "runlane_activations_queued_oldest_seconds",
            "How long the oldest of them has waited.",
            now.queued_oldest_seconds,
        ),
        (
            "runlane_notices_waiting",
            "What sessions have to tell each other and have not.",
            now.notices,
        ),
    ):
        yield GaugeMetricFamily(name, told, value)


def _counts(stats: Stats) -> Iterator[Metric]:
    yield _histogram("runlane_commit_batch_size", "Writes in a transaction.", stats.batch_size)
    yield _histogram(
        "runlane_commit_seconds",
        "From when a transaction was begun until it was on disk.",
        stats.commit_seconds,
    )
    yield _histogram(
        "runlane_timer_lag_seconds",
        "From when something was due until it was begun.",
        stats.timer_lag_seconds,
    )
    yield CounterMetricFamily("runlane_events_committed", "Events committed.", stats.events)
    yield CounterMetricFamily(
        "runlane_recoveries",
        "Activations queued since the one before was lost.",
        stats.recoveries,
    )
    ended = CounterMetricFamily("runlane_runs_ended", "Runs ended.", labels=("stop_reason",))
    for reason, count in stats.runs_ended.items():
        ended.add_metric((reason.name,), count)
    yield ended
    failed = CounterMetricFamily(
        "runlane_store_errors", "Writes that the store did not take.", labels=("kind",)
    )
    for kind, count in stats.failed_writes.items():
        failed.add_metric((kind,), count)
    yield failed
    calls = CounterMetricFamily(
        "runlane_calls", "Calls that have ended.", labels=("method", "code")
    )
    for names, count in stats.calls.items():
        calls.add_metric(names, count)
    yield calls
    refused = CounterMetricFamily(
        "runlane_quota_refusals", "Calls that a quota refused.", labels=("quota",)
    )
    for name, count in stats.exceeded.items():
        refused.add_metric((name,), count)
    yield refused
    times = HistogramMetricFamily(
        "runlane_call_seconds", "How long unary calls took, waits included.", labels=("method",)
    )
    for method, histogram in stats.call_seconds.items():
        times.add_metric((method,), _buckets(histogram), histogram.total)
    yield times


class _OfApp(Collector):
    """Reads an app on its event loop for a thread that scrapes."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._loop = loop

    def collect(self) -> list[Metric]:
        """Returns the metrics."""
        app = self._app

        async def read() -> tuple[Gauges, ServerInfoView, Stats]:
            return app.gauges(), app.server_info(), app.stats.copy()

        reading = asyncio.run_coroutine_threadsafe(read(), self._loop)
        try:
            return list(families(*reading.result(_SECONDS)))
        except LateError:
            reading.cancel()
            raise


class MetricsServer:
    """Serves the metrics of an app over HTTP."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    def start(self, host: str, port: int) -> int:
        """Listens; returns the port.

        Raises:
            OSError: The address cannot be listened on.
        """
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_OfApp(self._app, asyncio.get_running_loop()))
        ProcessCollector(registry=registry)
        self._server, self._thread = start_http_server(port, host, registry)
        return self._server.server_port

    async def close(self) -> None:
        """Stops to listen."""
        if self._server is None or self._thread is None:
            return
        # It ends at its next look; a scrape that still runs needs the event loop.
        await asyncio.to_thread(self._server.shutdown)
        self._server.server_close()
        await asyncio.to_thread(self._thread.join)
        self._server = None
