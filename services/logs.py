"""Structured logs on standard error."""

from __future__ import annotations

import logging
import sys

import structlog

from services.settings import Log


def configure(settings: Log) -> None:
    """Sets structlog up: one line per event, readable or JSON."""
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[settings.level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # A line is one write: workers share the stream.
        cache_logger_on_first_use=True,
    )
