"""Certain differences, and in-flight ones."""

from __future__ import annotations

import random

import pytest

from components.commands.verify.diff import FileComparison, TableDiff, classify
from components.commands.verify.report import DifferenceKind
from components.lib.lake.file_set_digest import LiveFile


def file(name: str, rows: int = 1) -> LiveFile:
    return LiveFile(f"s3://b/{name}", rows, 100)


A, B, C = file("a"), file("b"), file("c")


def compared(live: list[LiveFile] | dict[LiveFile, int], registered: dict[LiveFile, int]) -> TableDiff:
    comparison = FileComparison(live.items() if isinstance(live, dict) else [(one, 1) for one in live])
    for one, row_id in registered.items():
        comparison.add_registered(one, row_id)
    return comparison.result()


def test_equal_sets_have_no_difference() -> None:
    assert not compared([A, B], {B: 1, A: 2})


def test_each_side_can_have_extra_files() -> None:
    found = compared([A, B], {B: 1, C: 2})
    assert (found.missing, found.extra, found.files) == ({C: 2}, {A: 1}, 2)


def test_a_duplicate_file_is_a_finding() -> None:
    assert compared([A, A], {A: 1}) == TableDiff(findings={(DifferenceKind.TWICE, A.path)})


def test_resolved_differences_were_in_flight() -> None:
    first = TableDiff({A: 1, B: 2}, {C: 1})
    assert not first.persisting(TableDiff())
    assert first.persisting(TableDiff({B: 2}, {C: 1})) == TableDiff({B: 2}, {C: 1})


def test_new_differences_do_not_persist() -> None:
    assert not TableDiff({A: 1}).persisting(TableDiff({B: 2}, {A: 1}, {(DifferenceKind.SCHEMA, "1 of 2")}))


def test_a_file_registered_again_is_another_difference() -> None:
    assert not TableDiff({A: 1}).persisting(TableDiff({A: 7}))


def test_a_file_added_to_iceberg_again_is_another_difference() -> None:
    assert not TableDiff(extra={A: 1}).persisting(TableDiff(extra={A: 2}))
    unknown = TableDiff(extra={A: None})
    assert unknown.persisting(unknown)
    assert not unknown.persisting(TableDiff())


def test_findings_persist_while_both_sides_are_unchanged() -> None:
    behind = TableDiff(findings={(DifferenceKind.SCHEMA, "version 1, registry 2")})
    assert behind.persisting(behind)
    assert not behind.persisting(TableDiff(findings={(DifferenceKind.SCHEMA, "version 2, registry 3")}))


def test_one_path_on_both_sides_is_described_differently() -> None:
    ours, theirs = file("a", rows=1), file("a", rows=2)
    found = classify({ours: 1, B: 2}, [theirs, C])
    assert found.described == [(ours, theirs)]
    assert (found.missing, found.extra) == ([B], [C])


class World:
    """A registry that changes at random, and an Iceberg that follows it in order with a random lag."""

    def __init__(self, seed: int, *, loses: LiveFile | None, keeps: set[LiveFile]) -> None:
        self.random = random.Random(seed)
        self.registered: dict[LiveFile, int] = {}
        self.live: dict[LiveFile, int] = {}
        self.log: list[tuple[str, LiveFile]] = []
        self.position = 0
        self.loses, self.keeps = loses, keeps

    def change(self, one: LiveFile | None = None) -> None:
        removable = [known for known in self.registered if known != self.loses]
        if one is None and removable and self.random.random() < 0.5:
            gone = self.random.choice(removable)
            del self.registered[gone]
            self.log.append(("-", gone))
        else:  # names are reused, as after a rollback
            one = one or file(str(self.random.randrange(12)))
            if one not in self.registered:
                self.registered[one] = len(self.log) + 1
                self.log.append(("+", one))

    def follow(self, until: int) -> None:
        for place, (sign, one) in enumerate(self.log[self.position : until], self.position):
            if sign == "+" and one != self.loses:
                self.live[one] = place
            elif sign == "-" and one not in self.keeps:
                self.live.pop(one, None)
        self.position = max(self.position, until)

    def pass_time(self) -> None:
        for _ in range(self.random.randrange(6)):
            self.change()
            if self.random.random() < 0.6:
                self.follow(self.random.randint(self.position, len(self.log)))

    def look(self) -> TableDiff:
        live = dict(self.live)
        self.pass_time()  # the two sides are not read at the same moment
        return compared(live, dict(self.registered))


@pytest.mark.parametrize("seed", range(300))
def test_under_writers_only_losses_and_leftovers_are_found(seed: int) -> None:
    lost, kept = [file("lost"), None][seed % 2], [file("kept"), None][seed % 3 > 0]
    world = World(seed, loses=lost, keeps={kept} if kept else set())
    for _ in range(10):
        world.pass_time()
    if lost is not None:
        world.change(lost)
    if kept is not None:
        world.live[kept] = 0
    candidates = world.look()
    until = len(world.log)
    while candidates:
        passed = world.position >= until
        world.pass_time()
        candidates = candidates.persisting(world.look())
        if passed:
            break
        world.follow(min(len(world.log), world.position + 1))
    assert set(candidates.missing) == ({lost} if lost else set())
    assert set(candidates.extra) == ({kept} if kept else set())
