"""Where the log goes and what it looks like."""

import logging
import sys

import structlog

from runlane_server.settings import Settings

# Locals of a frame hold keys and what users said; they never belong in a log.
_FRAMES = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)


def configure(settings: Settings) -> None:
    """Sends everything that is logged to stderr; stdout is for what programs read."""
    structured = settings.log_format == "json"
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if structured
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if structured:
        shared.append(structlog.processors.ExceptionRenderer(_FRAMES))
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
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processor=renderer)
    )
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[handler], force=True)
    # The executor of the server's own agents is ours: it keeps to the setting below it too.
    logging.getLogger("runlane").setLevel(level)
