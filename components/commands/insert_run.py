"""What `astha insert` does: reads files of rows and inserts each one into a table."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec
import pyarrow as pa

from astha.cli.exit_codes import Exit, Failure
from astha.cli.progress import progress
from astha.settings import Settings
from astha.wiring import context
from components.lib.lake.lake_session import open_lake
from components.lib.lake.schema.table_schema import TableSchema
from components.lib.lake.storage.objects import StorageUnavailable
from components.lib.storage_manager.errors import InsertError, NoSuchTable, RowsRefused
from components.lib.storage_manager.fitting_readers import read_fitting
from components.lib.storage_manager.insert_result import InsertResult
from components.lib.storage_manager.manager import StorageManager
from components.lib.storage_manager.readers import Format, RowSource, format_of, open_source
from components.lib.storage_manager.rejects import FirstRejects, OnReject, Reject
from components.lib.storage_manager.settings import StorageSettings
from registry.errors import RegistryError

_STDIN = "-"


@dataclass
class InsertRun:
    table: str
    files: tuple[str, ...]
    kind: Format | None
    settings: StorageSettings
    insert_id: str | None = None
    rejects: RejectsFile | None = None  # None: a row that does not fit refuses its file
    done: list[tuple[str, InsertResult]] = field(default_factory=list)

    def id_of(self, name: str) -> str | None:
        """Returns the id of one file's insert. A file keeps it if the list around it changes."""
        return None if self.insert_id is None else f"{self.insert_id}/{name}"

    def format_of(self, name: str) -> Format:
        if self.kind is not None:
            return self.kind
        if name == _STDIN:
            raise Failure("standard input has no extension: give its format with --format", Exit.USAGE)
        try:
            return format_of(name)
        except InsertError as error:
            raise Failure(str(error), Exit.USAGE) from error


class RejectsFile:
    """JSON lines, appended: a repeated command loses no reject of an earlier one. The rejects of an insert are durable
    before its rows are registered.
    """

    def __init__(self, path: Path) -> None:
        self.count = 0
        self._file = path.open("ab")

    def of(self, name: str) -> OnReject:
        def write(reject: Reject) -> None:
            self.count += 1
            self._file.write(
                msgspec.json.encode({"file": name, **msgspec.structs.asdict(reject)}, enc_hook=str) + b"\n"
            )

        return write

    def synced(self, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
        yield from rows
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


async def insert_all(run: InsertRun, settings: Settings, *, quiet: bool) -> None:
    async with (
        open_lake(settings) as lake,
        StorageManager(context(lake.settings, lake.store, lake.clock), run.settings) as manager,
    ):
        with _read_progress(quiet=quiet) as watch:
            for name in run.files:
                try:
                    run.done.append((name, await _insert_one(manager, run, name, watch)))
                except (InsertError, StorageUnavailable) as error:
                    raise _failure(run, name, error) from error
            await _register(manager, run)


async def _insert_one(manager: StorageManager, run: InsertRun, name: str, watch: Watch) -> InsertResult:
    target = await manager.target(run.table, fresh=True)
    kind, fill = run.format_of(name), manager.settings.fill_missing
    try:
        with _opened(name, kind) as (file, size):
            if run.rejects is None:
                source = open_source(file, size, kind, target.schema, fill_missing=fill)
                return await manager.insert(run.table, watch(name, source), insert_id=run.id_of(name))
            rejects = run.rejects.of(name)
            rows = read_fitting(file, size, kind, target.schema, rejects, fill_missing=fill)
            read = watch(name, RowSource(rows, lambda: 0 if size is None else file.tell(), size))
            return await manager.insert(run.table, run.rejects.synced(read), insert_id=run.id_of(name))
    except RowsRefused as refused:
        raise await asyncio.to_thread(_counted, run, name, target.schema, refused) from refused


def _counted(run: InsertRun, name: str, schema: TableSchema, refused: RowsRefused) -> InsertError:
    """Returns an error about all rows of the file that don't fit. Standard input can't be read a second time."""
    if name == _STDIN or refused.row is None:
        return refused
    found, kind = FirstRejects(), run.format_of(name)
    try:
        with _opened(name, kind) as (file, size):
            for _ in read_fitting(file, size, kind, schema, found, fill_missing=run.settings.fill_missing):
                pass
    except (InsertError, OSError):
        return refused
    return InsertError(str(found)) if found.count > 1 else refused


async def _register(manager: StorageManager, run: InsertRun) -> None:
    """Waits in both modes: when the command ends with 0, the rows are in the table."""
    for name, inserted in run.done:
        try:
            await inserted.registered
        except RegistryError as error:
            raise Failure(f"{name}: its rows are not in the table: {error}", Exit.PROBLEM) from error


def _failure(run: InsertRun, name: str, error: InsertError | StorageUnavailable) -> Failure:
    if isinstance(error, NoSuchTable):
        return Failure(str(error), Exit.PROBLEM)
    before = f" ({', '.join(done for done, _ in run.done)} inserted before)" if run.done else ""
    shown = "standard input" if name == _STDIN else name
    code = Exit.UNAVAILABLE if isinstance(error, StorageUnavailable) else Exit.USAGE
    return Failure(f"{shown}: {error}; none of its rows were inserted{before}", code)


@contextmanager
def _opened(name: str, kind: Format) -> Iterator[tuple[IO[bytes], int | None]]:
    if name == _STDIN:
        if kind == "parquet":  # its footer is at the end
            data = sys.stdin.buffer.read()
            yield io.BytesIO(data), len(data)
        else:
            yield sys.stdin.buffer, None
        return
    path = Path(name)
    with path.open("rb") as file:
        yield file, path.stat().st_size


Watch = Callable[[str, RowSource], Iterator[pa.Table]]


@contextmanager
def _read_progress(*, quiet: bool) -> Iterator[Watch]:
    """Shows how much of each file has been read."""
    with progress("inserting", quiet=quiet, unit="bytes") as report:

        def watch(name: str, source: RowSource) -> Iterator[pa.Table]:
            for batch in source.batches:
                report(Path(name).name, source.position(), source.size)
                yield batch
            report.note("registering")

        yield watch
