"""What went in must have come out: rows, checksums, names. Whatever differs is never swapped."""

from __future__ import annotations

from astha.errors import AsthaError
from components.compactor.merge import MergeResult, MergeTask


class Mismatch(AsthaError):
    """A merge whose result is not its inputs. The message says in what; nothing was swapped."""


def compare(task: MergeTask, result: MergeResult) -> None:
    expected = sum(part.rows for part in task.inputs)
    registered = sum(draft.row_count for draft in result.files)
    counts = {"read": result.rows_in, "written": result.rows_out, "in the new files": registered}
    wrong = {what: count for what, count in counts.items() if count != expected}
    if wrong:
        told = ", ".join(f"{count:,} {what}" for what, count in wrong.items())
        raise _mismatch(task, f"the registry has {expected:,} rows for its inputs, but there are {told}")
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
    strange = {draft.partition_path for draft in result.files} - {task.partition_path}
    if strange:
        raise _mismatch(task, f"its files say that they belong to {', '.join(sorted(strange))}")


def _mismatch(task: MergeTask, what: str) -> Mismatch:
    place = f"{task.table} {task.partition_path}".strip()
    return Mismatch(f"{place}: merging {len(task.inputs)} files did not give the same rows: {what}")
