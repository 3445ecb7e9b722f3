"""Secrets from a directory with one file for each, such as systemd's credentials or a secret that Kubernetes mounts.

A file is named for what it holds: `registry.url`, `source.kafka.sasl.password`, or the path of a value in
subscriptions.yaml, `components.kafka_sink.settings.sasl.password`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from astha import strict_yaml
from astha.errors import ConfigError

SECRETS_VARIABLE = "ASTHA_SECRETS"
COMPONENTS = "components"
_PREFIX = "astha_"  # systemd puts the credential's name before the names of a directory's files


class SecretFiles:
    """The directory's files as nested values, and the file that each value comes from."""

    def __init__(self, files: Mapping[tuple[str, ...], Path]) -> None:
        self._files = files
        self.values = _nested({keys: _text(path) for keys, path in files.items()})

    def file_of(self, keys: tuple[str, ...]) -> Path | None:
        return self._files.get(keys)


def read_secret_files(model: type[BaseModel]) -> SecretFiles:
    """Returns the values for settings of this model; none if ASTHA_SECRETS is not set.

    Files whose name begins with no group of settings are ignored: a directory may also hold a TLS key.
    """
    return SecretFiles({_keys(model, name): path for name, path in _files(model.model_fields)})


def with_component_secrets(components: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns the components of subscriptions.yaml with the values that files named `components.NAME.settings...` hold.

    A file for a component that is not there is ignored: daemons with different subscriptions may share the directory.
    Raises ConfigError if a name leads to no place in a component's settings.
    """
    merged = dict(components)
    for name, path in _files((COMPONENTS,)):
        _, component, *keys = name.split(".")
        if not isinstance(merged.get(component), Mapping):
            continue
        if len(keys) < 2 or keys[0] != "settings" or not all(keys):
            raise ConfigError(f"{path}: name the file {COMPONENTS}.{component}.settings.NAME")
        merged[component] = _with(merged[component], tuple(keys), _text(path), path)
    return merged


def _files(groups: Collection[str]) -> Iterator[tuple[str, Path]]:
    named = os.environ.get(SECRETS_VARIABLE)
    if not named:
        return
    try:
        found = sorted(path for path in Path(named).iterdir() if path.is_file())
    except OSError as error:
        raise ConfigError(f"{SECRETS_VARIABLE}: can't read {named}: {error.strerror}") from error
    for path in found:
        name = path.name.removeprefix(_PREFIX)
        group, dot, rest = name.partition(".")
        if dot and rest and group in groups:
            yield name, path


def _text(path: Path) -> str:
    return strict_yaml.read_text(path).rstrip("\r\n")


def _keys(model: type[BaseModel], name: str) -> tuple[str, ...]:
    """Splits a setting's name. What follows a mapping is one key: `lake.catalog.s3.secret-access-key`."""
    keys, rest = [], name
    below: type[BaseModel] | None = model
    while below is not None and "." in rest:
        key, _, rest = rest.partition(".")
        keys.append(key)
        default = below.model_fields[key].default if key in below.model_fields else None
        below = type(default) if isinstance(default, BaseModel) else None
    return (*keys, rest)


def _nested(values: Mapping[tuple[str, ...], str]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for keys, value in values.items():
        below = nested
        for key in keys[:-1]:
            below = below.setdefault(key, {})
        below[keys[-1]] = value
    return nested


def _with(values: Mapping[str, Any] | None, keys: tuple[str, ...], value: str, path: Path) -> dict[str, Any]:
    if values is not None and not isinstance(values, Mapping):
        raise ConfigError(f"{path}: subscriptions.yaml has a value where the file's name expects a mapping")
    changed = dict(values or {})
    changed[keys[0]] = value if len(keys) == 1 else _with(changed.get(keys[0]), keys[1:], value, path)
    return changed
