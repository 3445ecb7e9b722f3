"""Hints for errors that beginners meet: the project's server is stopped, or the command runs outside of the project."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from astha.cli.exit_codes import Failure
from astha.client import NoDaemon, Refused
from registry.errors import SchemaMismatch, Unavailable

if TYPE_CHECKING:
    from astha.settings import Settings

_NO_SETTINGS = "there is no astha.yaml here: run this in the project's directory, or name the file with --config"


@dataclass(frozen=True)
class Given:
    """Options of the command line, each None by default."""

    config: Path | None
    registry: str | None
    server: str | None


def with_hint(failure: Failure, error: Exception, given: Given, used: Sequence[Settings]) -> Failure:
    """Returns the failure, with the way out if it is known. ``used`` are the settings, if they could be read."""
    if isinstance(error, Unavailable) and (project := _stopped_project(used)) is not None:
        return Failure(f"the registry of {project} is not running: start it with `astha up`", failure.code)
    if _lacks_settings(error, given):
        return Failure(f"{failure.message}; {_NO_SETTINGS}", failure.code)
    return failure


def _stopped_project(used: Sequence[Settings]) -> Path | None:
    """Returns the directory whose embedded server is the registry, if it is not running."""
    from astha.cli.project import embedded_directory

    directory = embedded_directory(used[0].registry.url.get_secret_value()) if used else None
    if directory is None or any(map(_accepts, directory.glob(".s.PGSQL.*[0-9]"))):
        return None
    return directory.parents[1]


def _accepts(path: Path) -> bool:
    """A server that was killed leaves its socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _lacks_settings(error: Exception, given: Given) -> bool:
    """Returns whether the registry or the daemon of the defaults was used, and is not what the user meant."""
    from astha.settings import settings_file

    if isinstance(error, SchemaMismatch) or isinstance(error.__cause__, SchemaMismatch):
        chosen, variables = given.registry, "ASTHA_REGISTRY"
    elif isinstance(error, NoDaemon | Refused):
        chosen, variables = given.server, "ASTHA_SERVER"
    else:
        return False
    if settings_file(given.config) is not None or chosen is not None:
        return False
    return not any(name.startswith(variables) for name in os.environ)
