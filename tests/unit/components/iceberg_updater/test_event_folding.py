from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from astha.events import Commit, Event, Operation
from components.iceberg_updater.event_folding import (
    TableTransaction,
    by_table,
    committed_by_engines,
    fold,
    is_swap,
)
from components.lib.lake.file_set_digest import Digest, LiveFile
from components.lib.lake.iceberg import SnapshotChange
from registry.inputs import FileDraft
from registry.models import IcebergCommit, Row, TableFile, TableMetadata
from registry.position import Position
from tests.delete_files import delete_row
from tests.parquet_files import PLAIN, as_row


def file(number: int, *, rows: int = 1, swap: str | None = None, table_id: int = 1) -> TableFile:
    draft = FileDraft(file_path=f"file:///{number}", file_size=1, row_count=rows, schema_version=1)
    made = as_row(draft, table_id, number, "compaction" if swap else "insert")
    return msgspec.structs.replace(made, operation_id=swap)


def events(position: int, added: Sequence[Row] = (), removed: Sequence[Row] = ()) -> list[Event[Row]]:
    commit = Commit(position, Position(position), 0, len(added) + len(removed))
    made: list[Event[Row]] = [Event(Operation.INSERT, row, None, commit, index) for index, row in enumerate(added)]
    return made + [Event(Operation.DELETE, row, row, commit, len(added) + index) for index, row in enumerate(removed)]


def folded(*transactions: list[Event[Row]]) -> list[tuple[list[int], list[str], str, int]]:
    """Returns added ids, removed paths, operation and position of each change."""
    found = by_table(transactions)
    return [
        ([one.id for one in change.added], [one.path for one in change.removed], change.operation.value, position)
        for change, position in fold(found[1].transactions)
    ]


def test_transactions_without_a_swap_fold_into_one_change() -> None:
    given = [events(1, [file(1)]), events(2, [file(2), file(3)]), events(3, removed=[file(9)])]
    assert folded(*given) == [([1, 2, 3], ["file:///9"], "overwrite", 3)]
    assert folded(*given[:2]) == [([1, 2, 3], [], "append", 2)]
    assert folded(given[2]) == [([], ["file:///9"], "delete", 3)]


def test_a_swap_is_a_change_of_its_own() -> None:
    swap = events(3, [file(5, rows=2, swap="s")], [file(1), file(2)])
    assert folded(events(1, [file(1)]), events(2, [file(2)]), swap, events(4, [file(6)])) == [
        ([1, 2], [], "append", 2),
        ([5], ["file:///1", "file:///2"], "replace", 3),
        ([6], [], "append", 4),
    ]


def test_transactions_that_are_not_swaps() -> None:
    def transaction(added: list[TableFile], removed: list[TableFile]) -> TableTransaction:
        return by_table([events(1, added, removed)])[1].transactions[0]

    good = file(5, rows=1, swap="s")
    assert is_swap(transaction([good], [file(1)]))
    assert not is_swap(transaction([file(5)], [file(1)])), "an overwrite"
    assert not is_swap(transaction([good], [])), "nothing removed"
    assert not is_swap(transaction([file(5, rows=2, swap="s")], [file(1)])), "row counts differ"
    fewer = transaction([good], [file(1, rows=2)])
    assert not is_swap(fewer), "rows are lost"
    assert is_swap(fewer, has_deletes=True), "these rows were deleted before"
    assert not is_swap(transaction([good, file(6, rows=0, swap="t")], [file(1)])), "two swaps at once"


def test_a_swap_that_applies_deletes_has_fewer_rows_and_removes_delete_files() -> None:
    gone = delete_row(1)
    ((change, position),) = fold(
        by_table([events(7, [file(5, rows=2, swap="s")], [file(1), file(2, rows=3), gone])])[1].transactions
    )
    assert (change.operation.value, change.deletes_removed, position) == ("replace", [gone.file_path], 7)
    ((change, _),) = fold(by_table([events(8, removed=[file(1), gone])])[1].transactions)
    assert (change.operation.value, change.deletes_removed) == ("delete", [gone.file_path]), "all rows were deleted"
    found = by_table([events(9, [gone])])[1]
    assert found.adds_delete_files


def test_what_an_engine_has_committed_is_in_iceberg_already() -> None:
    marker = IcebergCommit(1, 1, 5, None, "append", "spark", 1, 0, 1, 0, 0, 0, "file:///m.json", 0, 0)
    of_engine = events(1, [marker, file(1), delete_row(1), file(2, table_id=2)])
    found = by_table([of_engine, events(2, [file(3)])])
    assert [part.position for part in found[1].transactions] == [2]
    assert [part.position for part in found[2].transactions] == [1]
    assert committed_by_engines([of_engine, events(2, [file(3)])]) == {1}
    assert committed_by_engines([events(3, removed=[marker])]) == set(), "markers are pruned"


def test_events_are_grouped_by_table() -> None:
    found = by_table([events(1, [file(1), file(2, table_id=2)]), events(2, [file(3, table_id=2)])])
    assert {table_id: len(own.transactions) for table_id, own in found.items()} == {1: 1, 2: 2}


def test_metadata_events_tell_creation_evolution_and_drop() -> None:
    draft = PLAIN.draft()
    version = TableMetadata(
        1, 1, 1, draft.schema, "parquet", draft.engine_config, "parquet", "zstd", draft.partition_by, draft.sort_by,
        draft.properties, 0, 0, 0,
    )  # fmt: skip
    begun = by_table([events(1, [version]), events(2, [file(1)])])[1]
    assert begun.creates
    assert not begun.drops
    assert begun.versions == {1}
    ended = by_table([events(3, removed=[file(1), version])])[1]
    assert ended.drops
    assert not ended.creates


steps = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 3)), max_size=40)


@given(steps)
def test_folding_preserves_the_net_change(given: list[tuple[int, int]]) -> None:
    """Files are added and removed at random: folded and unfolded, the digest is the same."""
    live: dict[int, TableFile] = {}
    transactions: list[list[Event[Row]]] = []
    for position, (number, rows) in enumerate(given, 1):
        if number in live:
            transactions.append(events(position, removed=[live.pop(number)]))
        else:
            live[number] = file(number, rows=rows)
            transactions.append(events(position, [live[number]]))
    digest = Digest()
    for change, _ in fold(by_table(transactions)[1].transactions) if transactions else ():
        _apply(digest, change)
    expected = Digest()
    for one in live.values():
        expected.add(LiveFile.of(one))
    assert digest == expected


def _apply(digest: Digest, change: SnapshotChange) -> None:
    for removed in change.removed:
        digest.remove(removed)
    for added in change.added:
        digest.add(LiveFile.of(added))
