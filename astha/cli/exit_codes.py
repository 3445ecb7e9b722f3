"""What the exit code of `astha` says, and how an error becomes one line and a code."""

from __future__ import annotations

import os
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
    INTERRUPTED = 130  # as shells report SIGINT


LEGEND = f"""\b
Exit codes:
  {Exit.OK:<3} done, and all is well
  {Exit.PROBLEM:<3} a problem was found: a schema that is not current, a component that is broken, a refusal
  {Exit.USAGE:<3} wrong usage, settings, subscriptions or input: correct them
  {Exit.UNAVAILABLE:<3} the registry or the daemon does not answer, or could not be checked: try again later
  {Exit.INTERNAL:<3} a fault of Astha itself: set {TRACEBACK_SETTING}=1 to see where, and report it
  {Exit.INTERRUPTED:<3} interrupted"""


class Failure(click.ClickException):
    """An error on its way to stderr: one line, whatever its cause spread over several."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = code  # type: ignore[misc]  # one class for all codes; click reads it off the instance

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"astha: {self.message}", file=file, err=file is None)


def redactor_of(context: click.Context) -> Redactor:
    """Of the secrets that this run of the command knows by now."""
    found: Redactor = context.meta.setdefault(_REDACTOR, Redactor())
    return found


def adopt_redactor(context: click.Context, redact: Redactor) -> None:
    """From the settings of the command, to which components may add. Settings that are read again add theirs."""
    known = context.meta.setdefault(_REDACTOR, redact)
    if known is not redact:
        known.add(*redact.secrets)


def failure_of(error: BaseException, redact: Redactor = NO_SECRETS) -> Failure:
    """The line and the code for anything that a command let through."""
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", Exit.INTERRUPTED)
    if isinstance(error, (RegistryError, AsthaError)):
        return Failure(redact(str(error)), _code_of(error))
    if os.environ.get(TRACEBACK_SETTING):
        raise error
    if isinstance(error, ModuleNotFoundError) and error.name is not None and (extras := extras_with(error.name)):
        remedy = " or ".join(install([extra]) for extra in extras)
        return Failure(f"the package {error.name!r} is not installed: {remedy}", Exit.USAGE)
    where = f"set {TRACEBACK_SETTING}=1 to see where"
    return Failure(redact(f"internal error: {type(error).__name__}: {_words(error)} ({where})"), Exit.INTERNAL)


def _words(error: BaseException) -> str:
    from pydantic import ValidationError  # here: most commands that fail early need none of it

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
