"""The files of deploy/docker, read for the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "deploy/docker"
OUR_IMAGES = {"astha:0.1.0": "daemon", "astha-spark:0.1.0": "spark"}


def compose() -> dict[str, Any]:
    """Returns compose.yaml with its anchors and merges resolved, like `docker compose config`."""
    content: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return content


def services() -> dict[str, dict[str, Any]]:
    return dict(compose()["services"])


def bind_mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Returns the files of this repository that the service mounts, by their place in the container."""
    mounts = {}
    for mount in service.get("volumes", []):
        source, target, *_ = mount.split(":")
        if source.startswith("."):
            mounts[target] = (DOCKER / source).resolve()
    return mounts


def named_volumes(service: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns name, target and options of the named volumes that the service mounts."""
    parts = [mount.split(":") for mount in service.get("volumes", []) if not mount.startswith(".")]
    return [(name, target, options[0] if options else "rw") for name, target, *options in parts]
