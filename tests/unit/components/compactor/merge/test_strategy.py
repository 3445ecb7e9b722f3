from __future__ import annotations

from typing import get_args

import pytest

from components.compactor.merge import Strategy, choose_strategy


@pytest.mark.parametrize("wanted", get_args(Strategy))
@pytest.mark.parametrize("order_columns", [0, 1, 2])
@pytest.mark.parametrize("mean_bytes", [None, 10, 1_000])
def test_plan_and_merge_choose_the_same(wanted: Strategy, order_columns: int, mean_bytes: int | None) -> None:
    planned = choose_strategy(wanted, order_columns=order_columns, mean_bytes=mean_bytes, copy_above_bytes=100)
    merged = choose_strategy(planned.strategy, order_columns=order_columns)
    assert merged.strategy == planned.strategy != "auto"
    assert (planned.strategy in ("sort", "zorder")) == (order_columns > 0)
