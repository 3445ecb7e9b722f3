"""A component that records the topics it receives. A topic's name can ask for more: hang, take long, write anywhere."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from astha.subscribers import Component, ComponentContext, Event, Topic, handles

FORBIDDEN = ("/etc", "/etc/astha", "/etc/astha/credentials", "/opt/astha", "/usr/local", "/var/lib", "/root", "/home",
             "/run", "/var/log", "/sys/fs/cgroup", "/proc/sys/kernel")  # fmt: skip
ALLOWED = ("/var/lib/astha", "/run/astha", "/tmp", "/var/tmp")  # noqa: S108  # private ones


class Recorder(Component):
    durable = True

    def __init__(self, path: Path) -> None:
        self._path = path

    @handles(Topic)
    async def topic(self, event: Event[Topic]) -> None:
        if event.after is None:
            return
        name = event.after.name
        if name.startswith("hang") and not self._path.with_name(name).exists():
            self._path.with_name(name).touch()  # once
            time.sleep(3_600)  # noqa: ASYNC251  # the event loop hangs: that is the point
        if name.startswith("slow"):
            await asyncio.sleep(1.0)
        writes = {path: _write(Path(path)) for path in (*FORBIDDEN, *ALLOWED)} if name == "write" else {}
        with self._path.open("a") as file:
            file.write(json.dumps({"topic": name, "writes": writes}) + "\n")


def _write(directory: Path) -> str:
    try:
        (directory / "astha-was-here").write_text("x")
    except OSError as error:
        return error.strerror or "refused"
    return "written"


def create(settings: Mapping[str, Any], _context: ComponentContext) -> Recorder:
    return Recorder(Path(settings["path"]))
