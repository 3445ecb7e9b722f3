"""The exit codes of `astha`, and how an error becomes one line and a code."""

from __future__ import annotations

import os
import select
import sys
from enum import IntEnum
from typing import IO, Any

import click

from astha.client import NoDaemon
from astha.errors import AddressTaken, AsthaError, ConfigError, SourceLost
from astha.extras import extras_with, install
from astha.redaction import NO_SECRETS, Redactor
from registry.errors import Invalid, RegistryError, Unavailable

TRACEBACK_SETTING = "ASTHA_TRACEBACK"
_REDACTOR = "astha.redaction"  # in the context of a command


class Exit(IntEnum):
    OK = 0
    PROBLEM = 1
    USAGE = 2
    UNAVAILABLE = 3
    INTERNAL = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130  # shells report SIGINT so


LEGEND = f"""\b
Exit codes:
  {Exit.OK:<3} success
  {Exit.PROBLEM:<3} a problem was found, such as an open circuit or a refused request
  {Exit.USAGE:<3} wrong usage, settings, subscriptions or input: correct it
  {Exit.UNAVAILABLE:<3} the registry or the daemon can't be reached or checked: try again later
  {Exit.INTERNAL:<3} a bug in Astha: set {TRACEBACK_SETTING}=1 for a traceback, and report it
  {Exit.INTERRUPTED:<3} interrupted"""


class Failure(click.ClickException):
    """An error for stderr, always in one line."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code
        self.exit_code = code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"astha: {self.message}", file=file, err=file is None)


def redactor_of(context: click.Context) -> Redactor:
    """Returns the redactor of this run of the command."""
    found: Redactor = context.meta.setdefault(_REDACTOR, Redactor())
    return found


def adopt_redactor(context: click.Context, redact: Redactor) -> None:
    """Uses the redactor of the command's settings, to which components add secrets. Settings read again add theirs."""
    known = context.meta.setdefault(_REDACTOR, redact)
    if known is not redact:
        known.add(*redact.secrets)


def failure_of(error: BaseException, redact: Redactor = NO_SECRETS) -> Failure:
    """Returns the line and the exit code for an error that a command did not handle."""
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", Exit.INTERRUPTED)
    if isinstance(error, BrokenPipeError) and _output_is_closed():
        raise error  # `head` has read enough: click ends quietly
    if isinstance(error, (RegistryError, AsthaError)):
        return Failure(redact(str(error)), _code_of(error))
    if os.environ.get(TRACEBACK_SETTING):
        raise error
    if isinstance(error, ModuleNotFoundError) and error.name is not None and (extras := extras_with(error.name)):
        remedy = " or ".join(install([extra]) for extra in extras)
        return Failure(f"the package {error.name!r} is not installed: {remedy}", Exit.USAGE)
    hint = f"set {TRACEBACK_SETTING}=1 for a traceback"
    return Failure(redact(f"internal error: {type(error).__name__}: {_text(error)} ({hint})"), Exit.INTERNAL)


def _output_is_closed() -> bool:
    """Whether the reader of a pipe is gone, so that nothing can be printed."""
    try:
        output = select.poll()
        output.register(sys.stdout, 0)  # errors are always reported
        return bool(output.poll(0))
    except (OSError, ValueError):  # not a file
        return False


def _text(error: BaseException) -> str:
    from pydantic import ValidationError  # here: few errors need it

    from astha.validation_errors import described

    return described(error) if isinstance(error, ValidationError) else str(error)


def _code_of(error: RegistryError | AsthaError) -> Exit:
    match error:
        case Invalid() | ConfigError():
            return Exit.USAGE
        case Unavailable() | SourceLost() | AddressTaken() | NoDaemon():
            return Exit.UNAVAILABLE
        case _:
            return Exit.PROBLEM
