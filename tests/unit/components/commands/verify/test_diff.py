"""What is a difference, and what is only on its way."""

from __future__ import annotations

import random

import pytest

from components.commands.verify.diff import Comparison, Observation, sort
from components.commands.verify.report import Kind
from components.lib.lake.file_set_digest import LiveFile


def file(name: str, rows: int = 1) -> LiveFile:
    return LiveFile(f"s3://b/{name}", rows, 100)


A, B, C = file("a"), file("b"), file("c")


def compared(live: list[LiveFile] | dict[LiveFile, int], registered: dict[LiveFile, int]) -> Observation:
    comparison = Comparison(live.items() if isinstance(live, dict) else [(one, 1) for one in live])
    for one, row_id in registered.items():
        comparison.registered(one, row_id)
    return comparison.observation()


def test_equal_sets_differ_in_nothing() -> None:
    assert not compared([A, B], {B: 1, A: 2})


def test_each_side_can_have_more() -> None:
    found = compared([A, B], {B: 1, C: 2})
    assert (found.missing, found.extra, found.files) == ({C: 2}, {A: 1}, 2)


def test_a_file_that_iceberg_has_twice_is_remarked_on() -> None:
    assert compared([A, A], {A: 1}) == Observation(remarks={(Kind.TWICE, A.path)})


def test_what_arrives_or_goes_was_on_its_way() -> None:
    first = Observation({A: 1, B: 2}, {C: 1})
    assert not first.persisting(Observation())
    assert first.persisting(Observation({B: 2}, {C: 1})) == Observation({B: 2}, {C: 1})


def test_new_differences_are_not_old_ones() -> None:
    assert not Observation({A: 1}).persisting(Observation({B: 2}, {A: 1}, {(Kind.SCHEMA, "1 of 2")}))


def test_a_file_that_was_registered_anew_is_another() -> None:
    assert not Observation({A: 1}).persisting(Observation({A: 7}))


def test_a_file_that_came_back_to_iceberg_is_another() -> None:
    assert not Observation(extra={A: 1}).persisting(Observation(extra={A: 2}))
    unknown = Observation(extra={A: None})
    assert unknown.persisting(unknown)
    assert not unknown.persisting(Observation())


def test_remarks_last_as_long_as_both_sides_say_the_same() -> None:
    behind = Observation(remarks={(Kind.SCHEMA, "version 1, registry 2")})
    assert behind.persisting(behind)
    assert not behind.persisting(Observation(remarks={(Kind.SCHEMA, "version 2, registry 3")}))


def test_one_path_on_both_sides_is_described_differently() -> None:
    ours, theirs = file("a", rows=1), file("a", rows=2)
    found = sort({ours: 1, B: 2}, [theirs, C])
    assert found.described == [(ours, theirs)]
    assert (found.missing, found.extra) == ([B], [C])


class World:
    """A registry that changes at random, and an Iceberg that follows it in order, a random number of changes behind."""

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
        else:  # names come again, as after a rollback
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

    def look(self) -> Observation:
        live = dict(self.live)
        self.pass_time()  # the two are not read at one moment
        return compared(live, dict(self.registered))


@pytest.mark.parametrize("seed", range(300))
def test_under_writers_nothing_but_losses_and_leftovers_is_found(seed: int) -> None:
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
