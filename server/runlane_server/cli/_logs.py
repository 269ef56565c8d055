"""Where the log goes and what it looks like."""

import logging
import sys
import traceback
from types import TracebackType

import structlog

from runlane_server.settings import Settings

# What lines of the standard library's log may carry beside their text.
_IDS = {"request_id", "session_id", "run_id", "activation_id"}
_FRAMES_MAX = 64


def _bare(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Puts kinds and places in the place of an exception.

    Its text, and what a frame holds, may be a key or what users said; neither belongs in a
    log.
    """
    given = event.pop("exc_info", None)
    if given is True:
        given = sys.exc_info()
    error = given[1] if isinstance(given, tuple) else given
    if isinstance(error, BaseException):
        event["kind"] = type(error).__qualname__
        event["frames"] = _frames(error)
    return event


def _frames(error: BaseException) -> list[str]:
    found: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(found) < _FRAMES_MAX:
        found.append(type(cause).__qualname__)
        found += _places(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return found


def _places(raised: TracebackType | None) -> list[str]:
    return [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(raised, limit=-24)
    ]


def configure(settings: Settings) -> None:
    """Sends everything that is logged to stderr; stdout is for what programs read."""
    structured = settings.log_format == "json"
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if structured
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _bare,
    ]
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # What libraries log through the standard library reads the same.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder(_IDS)], processor=renderer
        )
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    # The executor of the server's own agents is ours: it keeps to the setting below it too.
    logging.getLogger("runlane").setLevel(level)
