"""The rows that must be in each table, recorded by the writers when a change is acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

AMOUNTS = 1_000
KINDS = ("north", "south", "über all/es")


def kind_of(number: int) -> str:
    return KINDS[number % len(KINDS)]


def amount_of(number: int) -> int:
    return number % AMOUNTS


class ExpectedRows:
    """Counts each file up or down when a change is acknowledged. Another writer may act on a file before its own writer
    receives the acknowledgement, so the order of the entries does not matter, only their sum.
    """

    def __init__(self) -> None:
        self.tables: dict[int, str] = {}
        self._rows: dict[str, frozenset[int]] = {}
        self._live: Counter[tuple[int, str]] = Counter()
        self._next = 0
        self.acknowledged: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def numbers(self, count: int) -> list[int]:
        """Returns numbers that were never returned before."""
        self._next += count
        return list(range(self._next - count, self._next))

    def record(self, path: str, rows: Collection[int]) -> None:
        self._rows[path] = frozenset(rows)

    def rows_of(self, path: str) -> frozenset[int] | None:
        """Returns None if its writer has not received the acknowledgement yet."""
        return self._rows.get(path)

    def add(self, table_id: int, *paths: str) -> None:
        self._live.update((table_id, path) for path in paths)

    def remove(self, table_id: int, *paths: str) -> None:
        self._live.subtract((table_id, path) for path in paths)

    def expected(self, table_id: int) -> list[tuple[int, int]]:
        """Returns the rows of a table as id and amount, in order.

        The compactor's file changes are not recorded. They keep the rows, so only rows are added up.
        """
        rows: Counter[int] = Counter()
        for (table, path), count in self._live.items():
            if table == table_id and count:
                for number in self._rows[path]:
                    rows[number] += count
        wrong = {number: count for number, count in rows.items() if count not in (0, 1)}
        assert not wrong, f"the expected rows are inconsistent: {wrong}"
        return sorted((number, amount_of(number)) for number, count in rows.items() if count)
