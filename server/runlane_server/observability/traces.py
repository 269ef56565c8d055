"""Traces by OpenTelemetry: a span of each call, and one of each run that has ended.

Imported where the setting `otel` is on, and nowhere else. What is exported, how it is sampled
and where it goes stand in the standard `OTEL_` variables. Spans hold names, ids and counts,
never content.
"""

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import Row, RunEnded
from runlane_server.core.words import StopReason

_NAME: Final = "runlane_server"
_EXPORTERS: Final = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
_CODES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
_NUMBERS: Final = {code: number for number, code in enumerate(_CODES)}
# What is the server's fault; all else is an answer.
_FAULTS: Final = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
_MICROSECOND: Final = 1000
"""In nanoseconds."""


class NoExporterError(Exception):
    """The variables ask for an exporter that is not there."""


def context_of(traceparent: str) -> Context:
    """Returns the context of a traceparent, which is well formed or empty: then of none."""
    if not traceparent:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    parent = SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=trace.TraceFlags(int(flags, 16)),
    )
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())


class _CallSpan:
    """The span of a call."""

    __slots__ = ("_span",)

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        made = self._span.get_span_context()
        return f"00-{made.trace_id:032x}-{made.span_id:016x}-{made.trace_flags:02x}"

    @property
    def recording(self) -> bool:
        return self._span.is_recording()

    def about(self, ids: dict[str, str], /) -> None:
        self._span.set_attributes({f"runlane.{name}": value for name, value in ids.items()})

    def refused(self, reason: str, /) -> None:
        self._span.set_attribute("error.type", reason)

    def ended(self, code: str, /) -> None:
        self._span.set_attribute("rpc.grpc.status_code", _NUMBERS.get(code, 2))
        if code in _FAULTS:
            self._span.set_status(Status(StatusCode.ERROR))


class Traces:
    """Records the spans of a server."""

    def __init__(self, provider: TracerProvider, version: str) -> None:
        """Makes a recorder.

        Args:
            provider: Where spans go; it is shut down at the close.
            version: Of the server.
        """
        self._provider = provider
        self._tracer = provider.get_tracer(_NAME, version)

    @contextmanager
    def call(self, service: str, method: str, parent: str, /) -> Iterator[_CallSpan]:
        """Records a call; `parent`: a traceparent, or empty."""
        with self._tracer.start_as_current_span(
            f"{service}/{method}",
            context_of(parent),
            SpanKind.SERVER,
            {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
            # What an error says may quote a user.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield _CallSpan(span)

    def committed(self, key: SessionKey, rows: Sequence[Row]) -> None:
        """Records the runs that a commit ended, from their creation to their end."""
        for row in rows:
            if isinstance(row, RunEnded) and row.trace:
                self._ended(key, row)

    def _ended(self, key: SessionKey, row: RunEnded) -> None:
        span = self._tracer.start_span(
            f"run {row.agent}",
            context_of(row.trace),
            attributes={
                "runlane.namespace": key.namespace,
                "runlane.session_id": key.session_id,
                "runlane.run_id": row.run_id,
                "runlane.agent": row.agent,
                "runlane.stop_reason": row.stop_reason.name,
                "runlane.attempts": row.attempt,
                "runlane.model_steps": row.steps_committed,
                "runlane.tool_calls": row.tool_calls,
            },
            start_time=row.create_time * _MICROSECOND,
        )
        if row.stop_reason not in {StopReason.COMPLETED, StopReason.CANCELLED}:
            span.set_attribute("error.type", row.stop_reason.name)
            span.set_status(Status(StatusCode.ERROR))
        span.end(row.end_time * _MICROSECOND)

    def close(self) -> None:
        """Exports what is left; takes as long as the exporter may (OTEL_BSP_EXPORT_TIMEOUT)."""
        self._provider.shutdown()


def start_traces(version: str) -> Traces:
    """Makes a recorder that exports by OTLP, as the `OTEL_` variables say.

    It is also what libraries in this process record with, the embedded executor among them.

    Raises:
        NoExporterError: The exporter that the variables name is not there.
    """
    resource = Resource.create({SERVICE_VERSION: version})
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # no variable named it
        resource = resource.merge(Resource({SERVICE_NAME: "runlane"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(_exporter()))
    trace.set_tracer_provider(provider)
    return Traces(provider, version)


def _exporter() -> SpanExporter:
    protocol = os.environ.get(
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    )
    module = _EXPORTERS.get(protocol)
    if module is None:
        raise NoExporterError(f"OTLP over {protocol!r} is neither of {', '.join(_EXPORTERS)}")
    try:
        exporter: SpanExporter = importlib.import_module(module).OTLPSpanExporter()
    except ImportError as error:
        raise NoExporterError(f"OTLP over {protocol} needs a package: {error}") from error
    return exporter
