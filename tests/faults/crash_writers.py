"""Writers that are killed: each in a process of its own, forked from one that has all modules loaded.

``python -m tests.faults.crash_writers`` and JSON. A writer announces files, writes them, registers them through a
`Registrar` and notes what was acknowledged, until SIGKILL finds it anywhere in between.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from pathlib import Path

import msgspec

from astha.clock import SystemLoopClock
from astha.subscribers import LakeSettings
from components.lib.lake.registration.registrar import Registrar, Result
from components.lib.lake.registration.upload_intents import purpose_of
from components.lib.lake.storage.objects import Objects
from registry.connect import open_store
from registry.contract import MetadataStore
from registry.engines import StoreSettings
from registry.inputs import FileDraft, Registration

TASKS = 4
LONGEST_LIFE = 80  # steps
LONGEST_DELAY_S = 0.02


class Order(msgspec.Struct):
    """What the test wants of the processes."""

    url: str
    directory: str
    acknowledged: str  # the file in which they note it
    table_id: int
    seed: int
    writers: int


class Writer:
    """Tells of each step that it has made, so that it can be killed after any of them, however slow the machine is."""

    def __init__(self, order: Order, number: int, store: MetadataStore, registrar: Registrar, steps: int) -> None:
        self._order = order
        self._steps = steps
        self._owner = f"writer-{order.seed}-{number}"
        self._store = store
        self._registrar = registrar
        self._objects = Objects(LakeSettings())
        self._notes = os.open(order.acknowledged, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    async def insert(self, task: int) -> None:
        chance = random.Random(f"{self._owner}/{task}")
        turn = 0
        while True:
            turn += 1
            parts = range(chance.randint(1, 3))
            paths = [f"file://{self._order.directory}/{self._owner}-{task}-{turn}-{part}" for part in parts]
            table = self._order.table_id
            await self._store.record_intents(paths, purpose=purpose_of("insert", table), owner=self._owner)
            self._step()
            for path in paths:
                await self._objects.put(path, bytes(turn))
                self._step()
            drafts = [FileDraft(file_path=path, file_size=turn, row_count=turn, schema_version=1) for path in paths]
            registration = Registration(table_id=table, files=drafts, intents_of=self._owner)
            await self._registrar.register(registration, sync=chance.random() < 0.2, callback=self._note)
            self._step()

    def _note(self, result: Result) -> None:
        paths = [file.file_path for file in result.result()]
        os.write(self._notes, "".join(f"{path}\n" for path in paths).encode())
        self._step()

    def _step(self) -> None:
        os.write(self._steps, b".")


async def write(order: Order, number: int, steps: int) -> None:
    store = await open_store(order.url, settings=StoreSettings(busy_timeout_s=60))
    async with Registrar(store, SystemLoopClock(), max_waiting_files=8) as registrar:
        writer = Writer(order, number, store, registrar, steps)
        await asyncio.gather(*(writer.insert(task) for task in range(TASKS)))


def doom(order: Order, number: int, life: int, delay_s: float) -> None:
    """One writer, which is killed a moment after so many steps."""
    told, steps = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(write(order, number, steps))
        finally:
            os._exit(1)  # it should have been killed
    os.close(steps)
    while life > 0:
        made = os.read(told, life)
        if not made:
            raise SystemExit(f"writer {number} ended by itself")
        life -= len(made)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    os.close(told)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        raise SystemExit(f"writer {number} ended by itself")


def main(order: Order) -> None:
    chance = random.Random(order.seed)
    Path(order.directory).mkdir(exist_ok=True)
    for number in range(order.writers):
        doom(order, number, chance.randint(1, LONGEST_LIFE), chance.random() * LONGEST_DELAY_S)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Order))
