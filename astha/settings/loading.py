"""Loads settings from their sources, and reports errors without showing a secret."""

from __future__ import annotations

import os
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from astha import strict_yaml
from astha.errors import ConfigError
from astha.settings.models import PREFIX, Settings
from astha.settings.secret_files import SecretFiles, read_secret_files

CONFIG_VARIABLE = "ASTHA_CONFIG"
DEFAULT_CONFIG = Path("astha.yaml")
"""In the working directory, if it is there: `astha init` writes it."""


class _Environment(EnvSettingsSource):
    """Accepts ASTHA_REGISTRY as the registry's URL, like `astha registry`."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        if field_name == "registry" and isinstance(value, str) and not value.lstrip().startswith("{"):
            return {"url": value}
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            if field_name not in Settings.model_fields:
                return value  # a group's setting: its model validates it, or splits a list
            variable = PREFIX + field_name.upper()
            raise ConfigError(f"{variable}: is a group of settings: set one of them, such as {variable}__...") from None


def settings_file(config: Path | None = None) -> Path | None:
    """Returns `config`, else the file of ASTHA_CONFIG, else astha.yaml in the working directory, if it is there."""
    named = os.environ.get(CONFIG_VARIABLE)
    return config or (Path(named) if named else DEFAULT_CONFIG if DEFAULT_CONFIG.is_file() else None)


def load_settings(
    config: Path | None = None, flags: Mapping[str, Any] | None = None, *, flags_from: str = "command line"
) -> Settings:
    """Reads the file (`settings_file`, if any), the files in ASTHA_SECRETS, the environment and `flags`.

    `flags` are nested like the file; later sources override earlier ones.

    Raises ConfigError, which names every wrong setting and its source, ``flags_from`` for a flag.
    """
    path = settings_file(config)
    document = strict_yaml.Document({}, {}) if path is None else _read_file(path)
    _refuse_unknown_variables()
    environment = _Environment(Settings)()
    secrets = read_secret_files(Settings)
    merged = _merge(_merge(_merge(document.content, secrets.values), environment), flags or {})
    try:
        return Settings(**merged)
    except ValidationError as error:
        origins = _Origins(path, document, secrets, environment, flags or {}, flags_from)
        raise ConfigError("; ".join(dict.fromkeys(_describe(fault, origins) for fault in _faults(error)))) from None


def _read_file(path: Path) -> strict_yaml.Document:
    text = strict_yaml.read_text(path)
    try:
        document = strict_yaml.parse(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if document.content is None:
        return strict_yaml.Document({}, {})
    if not isinstance(document.content, dict) or not all(isinstance(key, str) for key in document.content):
        raise ConfigError(f"{path}: line 1: expected a mapping of settings, such as `server: {{port: 27840}}`")
    return document


def _refuse_unknown_variables() -> None:
    for variable in os.environ:
        if variable.startswith(PREFIX) and "__" in variable:
            group = variable.removeprefix(PREFIX).partition("__")[0].lower()
            if group not in Settings.model_fields:
                raise ConfigError(
                    f"{variable}: there is no setting {group!r}{_suggestion((group,), Settings.model_fields)}"
                )


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        merged[key] = _merge(under, value) if isinstance(under, Mapping) and isinstance(value, Mapping) else value
    return merged


class _Origins:
    """The source of each setting's value, for errors."""

    def __init__(
        self,
        path: Path | None,
        document: strict_yaml.Document,
        secrets: SecretFiles,
        environment: Mapping[str, Any],
        flags: Mapping[str, Any],
        flags_from: str,
    ) -> None:
        self._path, self._document, self._secrets = path, document, secrets
        self._environment, self._flags, self._flags_from = environment, flags, flags_from

    def of(self, path: tuple[str, ...]) -> str:
        if _holds(self._flags, path):
            return self._flags_from
        if _holds(self._environment, path):
            return PREFIX + "__".join(path).upper()
        if file := self._secrets.file_of(path):
            return str(file)
        line = self._document.lines.get(path) or self._document.lines.get(path[:1])
        return f"{self._path}: line {line}" if line else f"{self._path or 'settings'}"


def _holds(values: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    under: Any = values
    for key in path:
        if not isinstance(under, Mapping) or key not in under:
            return False
        under = under[key]
    return True


def _faults(error: ValidationError) -> list[tuple[tuple[str, ...], str, str]]:
    """Leaves out the input, which may be a secret."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return [(tuple(map(str, fault["loc"])), fault["type"], fault["msg"]) for fault in faults]


def _describe(fault: tuple[tuple[str, ...], str, str], origins: _Origins) -> str:
    path, kind, message = fault
    name, where = ".".join(path), origins.of(path)
    if kind != "extra_forbidden":
        return f"{where}: {name}: {message.removeprefix('Value error, ')}"
    group = Settings.model_fields.get(path[0])
    known = Settings.model_fields
    if len(path) > 1 and group is not None and isinstance(group.default, BaseModel):
        known = type(group.default).model_fields
    return f"{where}: there is no setting {name!r}{_suggestion(path, known)}"


def _suggestion(path: tuple[str, ...], known: Mapping[str, FieldInfo]) -> str:
    close = get_close_matches(path[-1], known, n=1)
    return f": did you mean {'.'.join((*path[:-1], close[0]))!r}?" if close else f"; there are {', '.join(known)}"
