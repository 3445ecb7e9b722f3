from __future__ import annotations

import pytest

from components.lib.spark.errors import SessionProblem
from components.lib.spark.network import driver_addresses
from components.lib.spark.settings import SparkSettings


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SparkSettings(), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="spark://127.0.0.1:7077,127.0.0.2:7077"), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="sc://127.0.0.1:15002/;token=x"), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="k8s://https://127.0.0.1:6443"), ("127.0.0.1", "127.0.0.1")),
        (SparkSettings(master="yarn", host="compactor.lake"), ("0.0.0.0", "compactor.lake")),  # noqa: S104
    ],
)
def test_driver_addresses(settings: SparkSettings, expected: tuple[str, str]) -> None:
    assert driver_addresses(settings) == expected


def test_a_master_whose_name_does_not_resolve() -> None:
    with pytest.raises(SessionProblem, match=r"no route to spark://nowhere\.invalid:1"):
        driver_addresses(SparkSettings(master="spark://nowhere.invalid:1"))
