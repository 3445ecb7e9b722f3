from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from astha.redaction import Redactor
from astha.settings import LogSettings
from astha.telemetry import configure_logging, set_level

SECRET = "open sesame"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.configure(**before)


def configure(lines: io.StringIO, form: str) -> None:
    configure_logging(LogSettings.model_validate({"format": form}), Redactor([SECRET]), lines)


def test_json_lines_of_structlog_and_of_the_standard_library(lines: io.StringIO) -> None:
    configure(lines, "json")
    structlog.get_logger("astha.lanes").warning("component is broken", component="audit", number=5)
    logging.getLogger("a.library").warning("said %s", "so")
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert first["event"] == "component is broken"
    assert (first["component"], first["number"]) == ("audit", 5)
    assert (first["level"], first["logger"]) == ("warning", "astha.lanes")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["logger"]) == ("said so", "a.library")
    assert second["timestamp"].endswith("Z")


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_line_contains_a_secret(lines: io.StringIO, form: str) -> None:
    configure(lines, form)
    log = structlog.get_logger("astha")
    log.info(f"connecting with {SECRET}", url="postgresql://me:open%20sesame@h/d", nested={"password": SECRET})
    try:
        raise ValueError(f"password={SECRET}")
    except ValueError:
        log.exception("failed")
        logging.getLogger("a.library").exception("failed with %r", SECRET)
    assert "sesame" not in lines.getvalue()
    assert "ValueError" in lines.getvalue()


def test_the_level_can_change_while_running(lines: io.StringIO) -> None:
    configure(lines, "json")
    log = structlog.get_logger("astha")
    log.debug("one")
    set_level("debug")
    log.debug("two")
    logging.getLogger("sqlalchemy.engine").info("three: a library's own news")
    set_level("error")
    log.warning("four")
    assert [json.loads(line)["event"] for line in lines.getvalue().splitlines()] == ["two"]


def test_a_secret_that_is_also_a_key_or_has_a_quote_leaves_valid_json(lines: io.StringIO) -> None:
    configure_logging(LogSettings(format="json"), Redactor(["event", 'a"b\\c', "info", "state"]), lines)
    structlog.get_logger("astha").info("an event", state={"state": ['a"b\\c', ValueError('a"b\\c')]})
    logging.getLogger("a.library").warning("said %s", 'a"b\\c')
    first, second = map(json.loads, lines.getvalue().splitlines())
    assert (first["event"], first["state"], first["level"]) == ("an ***", {"state": ["***", "***"]}, "info")
    assert second["event"] == "said ***"


def test_a_secret_that_becomes_known_later_is_masked_from_then_on(lines: io.StringIO) -> None:
    redact = Redactor()
    configure_logging(LogSettings(format="json"), redact, lines)
    redact.add("made at run time")
    structlog.get_logger("astha").info("with", token="made at run time")
    assert "made at run time" not in lines.getvalue()


def test_libraries_that_log_secrets_are_silent_at_debug(lines: io.StringIO) -> None:
    configure(lines, "json")
    set_level("debug")
    for name in ("py4j.java_gateway", "py4j.clientserver", "pyspark.sql", "botocore.auth", "urllib3.connectionpool"):
        logging.getLogger(name).debug("Command to send: A\n0123456789abcdef")
        logging.getLogger(name).info("the same")
    assert lines.getvalue() == ""
