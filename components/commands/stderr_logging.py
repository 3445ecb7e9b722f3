"""Logs of a command go to stderr, from WARNING on: stdout is for records."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Applies inside the block."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)
