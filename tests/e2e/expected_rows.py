"""What was acknowledged: the truth that everything else is compared with, kept by the writers themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

AMOUNTS = 1_000
KINDS = ("north", "south", "über all/es")


def kind_of(number: int) -> str:
    return KINDS[number % len(KINDS)]


def amount_of(number: int) -> int:
    return number % AMOUNTS


class Book:
    """Files come and go by acknowledged changes. Each is counted up or down when its answer arrives: since others may
    have acted on a file before its own writer hears of it, the order of entries does not matter, only their sum.
    """

    def __init__(self) -> None:
        self.tables: dict[int, str] = {}
        self._rows: dict[str, frozenset[int]] = {}
        self._live: Counter[tuple[int, str]] = Counter()
        self._next = 0
        self.acknowledged: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def numbers(self, count: int) -> list[int]:
        """Never the same twice."""
        self._next += count
        return list(range(self._next - count, self._next))

    def wrote(self, path: str, rows: Collection[int]) -> None:
        self._rows[path] = frozenset(rows)

    def rows_of(self, path: str) -> frozenset[int] | None:
        """None if its writer has not heard of it yet."""
        return self._rows.get(path)

    def came(self, table_id: int, *paths: str) -> None:
        self._live.update((table_id, path) for path in paths)

    def went(self, table_id: int, *paths: str) -> None:
        self._live.subtract((table_id, path) for path in paths)

    def expected(self, table_id: int) -> list[tuple[int, int]]:
        """The rows of a table as id and amount, in order. Files come and go by compactions, too, of which nobody tells
        the book; but their rows stay, so that only rows can be added up.
        """
        rows: Counter[int] = Counter()
        for (table, path), count in self._live.items():
            if table == table_id and count:
                for number in self._rows[path]:
                    rows[number] += count
        wrong = {number: count for number, count in rows.items() if count not in (0, 1)}
        assert not wrong, f"the book itself is wrong: {wrong}"
        return sorted((number, amount_of(number)) for number, count in rows.items() if count)
