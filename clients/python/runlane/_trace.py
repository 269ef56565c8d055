"""Traces of the program that uses the client, passed on and taken up.

OpenTelemetry is looked for among what the program has loaded: where it did not, there is no
trace to pass on and nobody who would record one, so it is never imported here.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TRACEPARENT: Final = "traceparent"
_API: Final = "opentelemetry.trace"
Attributes: TypeAlias = Mapping[str, str | int]


def traceparent() -> str:
    """Returns what names the span that the caller is in; empty: it is in none."""
    if _API not in sys.modules:
        return ""
    from opentelemetry import trace  # noqa: PLC0415 - see above

    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


class Recorded:
    """A span, or nothing where nobody records."""

    def __init__(self, span: "Span | None" = None) -> None:
        self._span = span

    def note(self, attributes: Attributes) -> None:
        """Adds to what is known of it: names, ids and counts, never content."""
        if self._span is not None:
            self._span.set_attributes(attributes)

    def failed(self, kind: str) -> None:
        """Notes that the work failed, and how; not what was said of it."""
        if self._span is not None:
            from opentelemetry.trace import Status, StatusCode  # noqa: PLC0415 - see above

            self._span.set_attribute("error.type", kind)
            self._span.set_status(Status(StatusCode.ERROR))


@cache
def _version() -> str:
    return metadata.version("runlane")


@contextmanager
def span(name: str, attributes: Attributes, *, parent: str | None = None) -> Iterator[Recorded]:
    """Records some work in the trace of the caller.

    Args:
        name: Of the work.
        attributes: Names, ids and counts, never content.
        parent: A traceparent to go on with in place of the caller's; empty: a trace of its own.
    """
    if _API not in sys.modules:
        yield Recorded()
        return
    from opentelemetry import trace  # noqa: PLC0415 - see above

    tracer = trace.get_tracer("runlane", _version())
    context = None
    if parent is not None:
        from opentelemetry.context import Context  # noqa: PLC0415 - see above
        from opentelemetry.trace.propagation import tracecontext  # noqa: PLC0415 - see above

        propagator = tracecontext.TraceContextTextMapPropagator()
        context = propagator.extract({TRACEPARENT: parent} if parent else {}, Context())
    with tracer.start_as_current_span(
        name,
        context,
        attributes=attributes,
        # What an error says may hold what nobody should read here.
        record_exception=False,
        set_status_on_exception=False,
    ) as made:
        recorded = Recorded(made)
        try:
            yield recorded
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            recorded.failed(type(error).__name__)
            raise
