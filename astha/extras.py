"""Optional dependencies: which extras of the distribution a package needs, and which of them are missing.

The contents of an extra are read from the distribution's metadata. No package is imported for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

DISTRIBUTION = "astha"

_NEEDS: Mapping[str, tuple[str, ...]] = {
    "components.api": ("lake",),  # topics need streams too
    "components.compactor.cli": ("lake",),  # only merging needs Spark; the first match counts
    "components.compactor": ("lake", "spark"),
    "components.iceberg_updater": ("lake",),
    "components.kafka_sink": ("kafka",),
    "components.metadata_orchestrator": ("lake",),
    "components.mqtt_sink": ("mqtt",),
    "components.segment_store": ("streams",),
    "components.snapshotter": ("lake",),
    "components.lib.spark": ("spark",),
    "components.lib.spark_format": ("lake", "spark", "streams"),
    "components.lib.storage_manager": ("lake",),
    "components.lib.streams": ("streams",),
    "components.commands.catalog": ("lake",),
    "components.commands.insert": ("lake",),
    "components.commands.tables": ("lake",),
    "components.commands.topic_to_table.cli": ("streams",),  # only `to-table` needs the other extras
    "components.commands.topic_to_table": ("lake", "spark", "streams"),
    "components.commands.topics": ("streams",),
    "components.commands.verify": ("lake",),
}
_IMPORTED_AS = {"kafka_python": "kafka"}
"""Distributions whose package has another name."""

_REQUIREMENT = re.compile(r"""^([A-Za-z0-9][A-Za-z0-9._-]*).*\bextra\s*==\s*['"]([A-Za-z0-9._-]+)['"]""")


def missing_extras(module: str) -> tuple[str, ...]:
    """Returns the extras that ``module`` needs and that are not, or not completely, installed."""
    needed = next((extras for package, extras in _NEEDS.items() if f"{module}.".startswith(f"{package}.")), ())
    return tuple(extra for extra in needed if not all(map(_importable, _packages().get(extra, ()))))


def extras_with(module: str) -> tuple[str, ...]:
    """Returns the extras that contain the package of ``module``."""
    package = module.partition(".")[0]
    return tuple(
        sorted(extra for extra, packages in _packages().items() if package in packages and extra not in ("all", "dev"))
    )


def remedy_for(wanted: str, absent: str | None = None) -> str | None:
    """Returns how to install what ``wanted`` needs if ``absent`` is missing, or None if no extra contains it."""
    extras = missing_extras(wanted)
    if not extras and absent is not None:
        extras = extras_with(absent)[:1]
    return install(extras) if extras else None


def install(extras: Iterable[str]) -> str:
    return f"pip install '{DISTRIBUTION}[{','.join(extras)}]'"


@cache
def _packages() -> Mapping[str, frozenset[str]]:
    """Returns the importable packages of each extra. Most are named like their distributions."""
    found: dict[str, set[str]] = {}
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:
        return {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is not None:
            name = match[1].replace("-", "_").lower()
            found.setdefault(match[2], set()).add(_IMPORTED_AS.get(name, name))
    return {extra: frozenset(packages) for extra, packages in found.items()}


def _importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False
