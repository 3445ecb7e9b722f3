from __future__ import annotations

import re

import pytest

from tests.fuzz.runner import fuzz


@pytest.mark.parametrize(
    ("how", "shown"), [("segfault", "Segmentation fault"), ("memory", "MemoryError"), ("error", "a foreign error")]
)
def test_a_case_that_breaks_is_named_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch, how: str, shown: str) -> None:
    monkeypatch.setenv("FUZZ_SELF_TEST", how)
    with pytest.raises(AssertionError, match=shown) as caught:
        fuzz("self_test", 60)
    found = re.search(r"repeat it with SEED=(\d+) FUZZ_CASE=(\d+)", str(caught.value))
    assert found is not None
    monkeypatch.setenv("SEED", found[1])
    monkeypatch.setenv("FUZZ_CASE", found[2])
    with pytest.raises(AssertionError, match=shown):
        fuzz("self_test", 60)


def test_what_holds_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZ_SELF_TEST", "nothing")
    assert fuzz("self_test", 0.2) > 10
