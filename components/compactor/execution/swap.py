"""The swap: the result of a merge is checked, then old files are replaced by new ones in one registry transaction."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.errors import AsthaError
from components.compactor.execution.cancellation import InputsChanged, JobStopped
from components.compactor.merge import MergeResult, MergeTask
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, Conflict, NotFound, Unavailable
from registry.models import LakeTable, TableDeleteFile, TableFile

_ATTEMPTS = 8
_BACKOFF = Backoff(initial_s=0.25, max_s=8.0)


class ResultMismatch(AsthaError):
    """The result of a merge does not hold the rows of its inputs. The message says how it differs."""


class SwapUncertain(AsthaError):
    """The registry does not answer, so the swap may have happened or not. No file may be removed: if it happened, the
    files belong to the table; if not, their upload intents become stale, and the cleaner removes them.
    """


class Swap(msgspec.Struct, frozen=True):
    old: Sequence[TableFile]
    new: Sequence[TableFile]
    result: MergeResult


def check_result(task: MergeTask, result: MergeResult) -> None:
    """Raises `ResultMismatch` unless rows, checksums and names of the result are those of the task."""
    if not 0 <= result.rows_deleted <= sum(file.rows for file in task.deletes):
        raise _mismatch(task, f"{result.rows_deleted:,} rows were left out, more than its delete files have")
    expected = sum(part.rows for part in task.inputs) - result.rows_deleted
    registered = sum(draft.row_count for draft in result.files)
    counts = {"read": result.rows_in, "written": result.rows_out, "in the new files": registered}
    wrong = {what: count for what, count in counts.items() if count != expected}
    if wrong:
        listed = ", ".join(f"{count:,} {what}" for what, count in wrong.items())
        raise _mismatch(task, f"its inputs have {expected:,} rows that are not deleted, but there are {listed}")
    if result.checksums_in != result.checksums_out:
        ids = sorted(
            number
            for number in {*result.checksums_in, *result.checksums_out}
            if result.checksums_in.get(number) != result.checksums_out.get(number)
        )
        raise _mismatch(task, f"the checksums of fields {', '.join(map(str, ids))} differ")
    if expected and not result.checksums_in:
        raise _mismatch(task, "there are no checksums to compare")
    paths = [draft.file_path for draft in result.files]
    if len(set(paths)) != len(paths) or not set(paths) <= set(task.outputs):
        raise _mismatch(task, "its files are not those that were announced")
    others = {draft.partition_path for draft in result.files} - {task.partition_path}
    if others:
        raise _mismatch(task, f"its files are of partition {', '.join(sorted(others))}")


async def swap_files(
    store: MetadataStore,
    clock: LoopClock,
    table: LakeTable,
    old: Sequence[TableFile],
    result: MergeResult,
    *,
    operation_id: str,
    intents_of: str,
    deletes: Sequence[TableDeleteFile] = (),
) -> Swap:
    """Repeated while the registry does not answer: if an earlier attempt was carried out, its files are found.

    ``deletes`` are the delete files that apply to the partition. Those that no data file needs any more are removed in
    the same transaction; if there are others by now, the merge has to be done again with them.

    Raises `InputsChanged`, `JobStopped`, or `SwapUncertain`.
    """
    paths = [draft.file_path for draft in result.files]
    lost: Unavailable | None = None
    for failures in range(1, _ATTEMPTS + 1):
        try:
            if lost is not None and (found := await store.get_files(table.id, paths)):
                return Swap(old, found, result)
            unneeded = await _unneeded(store, table, old, result, deletes)
            new = await store.swap_files(
                table.id, old, result.files, operation_id=operation_id, intents_of=intents_of,
                seen_deletes=[file for file in deletes if file not in unneeded], removed_deletes=unneeded,
            )  # fmt: skip
            return Swap(old, new, result)
        except Unavailable as error:
            lost = error
            await clock.sleep(_BACKOFF.wait_s(failures, clock))
        except NotFound as error:
            raise JobStopped("aborted", f"the table was dropped meanwhile: {error}") from error
        except (Conflict, AlreadyExists) as error:
            if lost is not None and (found := await store.get_files(table.id, paths)):
                return Swap(old, found, result)
            names = set(getattr(error, "names", ()))
            changed = {file.file_path for file in old} & names
            if changed or names - set(paths):  # the others are delete files
                raise InputsChanged(changed) from error
            raise JobStopped("aborted", f"the swap was refused: {error}") from error
    raise SwapUncertain(
        f"{table.database}.{table.name}: it is not known whether the swap {operation_id} happened: {lost}"
    ) from lost


async def _unneeded(
    store: MetadataStore,
    table: LakeTable,
    old: Sequence[TableFile],
    result: MergeResult,
    deletes: Sequence[TableDeleteFile],
) -> list[TableDeleteFile]:
    """Returns the delete files that name no live data file once the old ones are gone."""
    gone = {file.file_path for file in old}
    named: dict[int, tuple[str, ...]] = {}
    for file in deletes:
        if file.referenced_data_file is not None:
            named[file.id] = (file.referenced_data_file,)
        elif (others := result.named_by_deletes.get(file.file_path)) is not None:
            named[file.id] = others
    paths = {path for some in named.values() for path in some} - gone
    live = {file.file_path for file in await store.get_files(table.id, sorted(paths))}
    return [file for file in deletes if file.id in named and live.isdisjoint(named[file.id])]


def _mismatch(task: MergeTask, what: str) -> ResultMismatch:
    place = f"{task.table} {task.partition_path}".strip()
    return ResultMismatch(f"{place}: merging {len(task.inputs)} files did not give the same rows: {what}")
