"""What a component is created with: the registry, the clock, and where the lake's files and tables are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import msgspec
from pydantic import SecretStr

from astha.clock import LoopClock
from astha.clock_guard import ClockGuard
from astha.errors import ConfigError
from astha.events import Commit
from astha.redaction import Redactor
from astha.settings.lake import LakeSettings as LakeSettings
from astha.settings.lake import S3Settings as S3Settings
from astha.tracing import NOT_TRACED, Attribute, Span, SpanKind, Tracer
from registry.contract import MetadataStore
from registry.position import Position


class Withheld(SecretStr):
    """Instead of the registry's URL, for a component that has not declared that it needs it."""

    def __init__(self, database: str) -> None:
        super().__init__("")
        self.database = database

    def get_secret_value(self) -> str:
        raise ConfigError(
            "the registry's URL, which holds its credentials, is given only to a component that declares it: "
            "write `needs_registry_url = True` beside `create`, or use `context.store`"
        )


class ComponentState(msgspec.Struct, frozen=True):
    """One component of this daemon, as `astha status` shows it."""

    component: str
    state: str
    reason: str | None
    position: Position


class ComponentContext(msgspec.Struct, frozen=True):
    store: MetadataStore
    clock: LoopClock
    registry_url: SecretStr
    lake: LakeSettings
    redactor: Redactor = msgspec.field(default_factory=Redactor)
    clock_guard: ClockGuard | None = None  # to be asked before anything is deleted by age
    component: str = ""  # its name in subscriptions.yaml
    tables: frozenset[str] = frozenset()  # of its entry there, for a component that serves any tables
    group: str = "astha"  # of the daemon
    component_states: Callable[[], Sequence[ComponentState]] = tuple  # of all components of this daemon
    tracer: Tracer = NOT_TRACED

    @property
    def database(self) -> str:
        """The kind of the registry: ``sqlite``, ``postgresql``, ``cockroachdb`` or ``dynamodb``."""
        if isinstance(self.registry_url, Withheld):
            return self.registry_url.database
        from registry.engines import parse_url  # loads SQLAlchemy, which a component's tests need not

        return parse_url(self.registry_url.get_secret_value()).drivername

    def redact(self, *secrets: str) -> None:
        """Masks these secrets in logs, errors and status from now on. Call it in `create` with each secret among the
        component's settings, and with later ones as soon as they are known.
        """
        self.redactor.add(*secrets)

    def span(self, name: str, kind: SpanKind = "internal", /, **attributes: Attribute) -> AbstractContextManager[Span]:
        """Records a part of the delivery or refresh in progress: ``with context.span("commit to Iceberg")``. Does
        nothing if tracing is off, or this delivery is not traced.
        """
        return self.tracer.span(name, kind, **attributes)

    def trace(
        self, name: str, commit: Commit | None = None, /, **attributes: Attribute
    ) -> AbstractContextManager[Span]:
        """As `span`, for work in the background: in the trace of the commit that caused it, or in one of its own."""
        return self.tracer.trace(name, commit, **attributes)

    def traceparent(self, commit: Commit | None = None) -> bytes | None:
        """Returns the W3C trace context to send on with what this commit, or the refresh in progress, has caused; None
        if tracing is off.
        """
        return self.tracer.traceparent(commit)

    def without_registry_url(self) -> ComponentContext:
        return msgspec.structs.replace(self, registry_url=Withheld(self.database))
