"""A span that is recorded: the `Span` of the contract over one of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import Token
from types import TracebackType
from typing import TypeAlias

from opentelemetry import trace as otel
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import StatusCode

from astha.redaction import Redactor
from astha.tracing.contract import Attribute, Span

Attributes: TypeAlias = dict[str, str | bool | int | float | tuple[str, ...]]

_LONGEST_TEXT = 1_000
_MOST_TEXTS = 64


class RecordedSpan:
    """Used in one `with` block, in one task or thread. Secrets are masked in everything that is recorded."""

    def __init__(self, span: otel.Span, redact: Redactor) -> None:
        self._span = span
        self._redact = redact
        self._token: Token[Context] | None = None

    def set(self, **attributes: Attribute) -> None:
        self._span.set_attributes(named(attributes, self._redact))

    def event(self, name: str, /, **attributes: Attribute) -> None:
        self._span.add_event(name, named(attributes, self._redact))

    def fail(self, error: BaseException | str) -> None:
        text = self._redact(error if isinstance(error, str) else repr(error))[:_LONGEST_TEXT]
        if isinstance(error, BaseException):
            self._span.set_attribute("error.type", type(error).__qualname__)
        self._span.set_status(StatusCode.ERROR, text)

    def __enter__(self) -> Span:
        self._token = attach(otel.set_span_in_context(self._span))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._span.add_event("cancelled")
        elif error is not None and not isinstance(error, GeneratorExit):
            self.fail(error)
        if self._token is not None:
            detach(self._token)
        self._span.end()


def named(attributes: Mapping[str, Attribute], redact: Redactor) -> Attributes:
    """Returns attributes as they are recorded: with the prefix, shortened, without secrets."""
    found: Attributes = {}
    for name, value in attributes.items():
        if isinstance(value, str):
            found[f"astha.{name}"] = redact(value)[:_LONGEST_TEXT]
        elif isinstance(value, (bool, int, float)):
            found[f"astha.{name}"] = value
        else:
            found[f"astha.{name}"] = tuple(redact(text)[:_LONGEST_TEXT] for text in value[:_MOST_TEXTS])
    return found
