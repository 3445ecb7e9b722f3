"""The version of Astha."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


def version() -> str:
    try:
        return installed_version("astha")
    except PackageNotFoundError:
        return "unknown"  # run from a source tree that was never installed
