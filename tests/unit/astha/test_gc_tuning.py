from __future__ import annotations

import gc
from collections.abc import Iterator
from weakref import ref

import pytest

from astha.gc_tuning import FreezingCollector, without_collections


class Knot:
    """Only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


class Hand:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_survivors_are_frozen_and_later_garbage_is_collected() -> None:
    with FreezingCollector():
        set_aside = gc.get_freeze_count()
        knot = Knot()
        seen = ref(knot)
        del knot
        gc.collect()

        assert set_aside > 0
        assert seen() is None
        assert gc.get_freeze_count() >= set_aside


def test_frozen_garbage_is_collected_after_unfreezing() -> None:
    clock = Hand()
    knot = Knot()
    seen = ref(knot)
    with FreezingCollector(unfreeze_every_s=10, clock=clock):
        del knot
        gc.collect()
        assert seen() is not None

        clock.now = 11
        gc.collect()
        assert seen() is None
        assert gc.get_freeze_count() > 0


def test_young_collections_freeze_nothing() -> None:
    with FreezingCollector():
        before = gc.get_freeze_count()
        kept = [Knot() for _ in range(1_000)]
        gc.collect(1)

        assert gc.get_freeze_count() == before
        del kept


def test_afterwards_nothing_is_frozen() -> None:
    callbacks = list(gc.callbacks)
    with FreezingCollector():
        assert gc.callbacks != callbacks

    assert gc.callbacks == callbacks
    assert gc.get_freeze_count() == 0


def test_a_start_without_collections_ends_when_the_collector_is_entered() -> None:
    with without_collections():
        assert not gc.isenabled()
        with FreezingCollector():
            assert gc.isenabled()
    assert gc.isenabled()


def test_a_start_that_fails_leaves_collections_enabled() -> None:
    with pytest.raises(OSError, match="no registry"), without_collections():
        raise OSError("no registry")
    assert gc.isenabled()
