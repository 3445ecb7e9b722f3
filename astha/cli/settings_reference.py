"""All settings as a list and as docs/settings.md, from the models themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from astha.settings import DEFAULT_REGISTRY, Settings
from astha.settings.models import PREFIX
from astha.subscribers.lane_policy import LanePolicy


class Entry(msgspec.Struct, frozen=True):
    name: str
    default: str
    variable: str
    description: str


def entries() -> list[Entry]:
    """Every setting, in the order of the models."""
    return [
        Entry(name, _text(field.default), PREFIX + name.replace(".", "__").upper(), field.description or "")
        for name, field in _fields(Settings)
    ]


def values(settings: Settings) -> dict[str, str]:
    """What is in force. Secrets are masked, the registry's URL shown without its password."""
    found = {name: _text(_value(settings, name)) for name, _ in _fields(Settings)}
    found["registry.url"] = settings.registry.shown
    return found


def markdown() -> str:
    """docs/settings.md."""
    return (
        "# Settings\n\n"
        "Written by `make docs` from the models; `astha settings` prints the same, `astha settings --effective` what "
        "is in force.\n\n"
        "A setting comes from the file that `--config` or `ASTHA_CONFIG` names (YAML, one mapping for each group), "
        "from the environment (the variable below), or from a flag (`--set server.port=27840`); the later is stronger. "
        "`ASTHA_REGISTRY` is short for `ASTHA_REGISTRY__URL`. A name that is not below is an error. Environment "
        "variables without `__` are left alone, because Kubernetes makes such for a service called `astha`.\n\n"
        "Keep secrets (a password in `registry.url`, `server.token`) out of command lines: use the environment, a file "
        "that others can't read, or libpq's `passfile`. They are never logged or shown.\n\n"
        f"{_table(entries())}\n"
        "## A component's lane\n\n"
        "For each component, under `lane` in subscriptions.yaml. The defaults suit a component that talks to a service "
        "on the network.\n\n"
        f"{_lane_table()}"
    )


def _table(listed: Iterable[Entry]) -> str:
    rows = [
        f"| `{entry.name}` | {_code(entry.default)} | `{entry.variable}` | {entry.description} |" for entry in listed
    ]
    return "\n".join(["| setting | default | variable | |", "|---|---|---|---|", *rows, ""])


def _lane_table() -> str:
    rows = [
        f"| `{name}` | {_code(_text(field.default))} | {field.description} |"
        for name, field in LanePolicy.model_fields.items()
    ]
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows, ""])


def _fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _fields(type(field.default), f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _value(settings: Settings, name: str) -> object:
    under: object = settings
    for part in name.split("."):
        under = getattr(under, part)
    return under


def _text(value: object) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(part)}" for name, part in value.items())
    if isinstance(value, SecretStr):
        return DEFAULT_REGISTRY if value.get_secret_value() == DEFAULT_REGISTRY else "***"
    return str(value)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""
