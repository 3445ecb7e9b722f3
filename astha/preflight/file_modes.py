"""Checks whether other users of the machine can read the registry's file or a local warehouse."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from astha.file_modes import mode_of
from astha.preflight.results import PreflightResult, warning
from astha.settings import Settings
from registry.engines import parse_url, sqlite_path

_OTHERS = stat.S_IROTH | stat.S_IWOTH


def file_modes(settings: Settings) -> Iterator[PreflightResult]:
    """Yields a warning for each that other users can read or write although its setting does not allow it."""
    if settings.registry.backend == "sqlite":
        path = sqlite_path(parse_url(settings.registry.url.get_secret_value()))
        yield from _open(path, "registry.file_mode", settings.registry.file_mode)
    warehouse = settings.lake.warehouse
    if "://" not in warehouse or warehouse.startswith("file://"):
        path = Path(unquote(urlsplit(warehouse).path)) if "://" in warehouse else Path(warehouse)
        yield from _open(path, "lake.directory_mode", settings.lake.directory_mode)


def _open(path: Path, name: str, wanted: str) -> Iterator[PreflightResult]:
    try:
        found = stat.S_IMODE(path.stat().st_mode)
        reachable = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)
    except OSError:
        return  # missing or not accessible: other checks report it
    if reachable and found & _OTHERS & ~mode_of(wanted):
        can = "write to" if found & stat.S_IWOTH else "read"
        yield warning(
            "file modes",
            f"every user of this machine can {can} {path}: its mode is {found:04o}, {name} is {wanted}",
            f"chmod {wanted} {path}, or set {name} to allow it",
        )
