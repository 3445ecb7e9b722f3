from __future__ import annotations

import re
from pathlib import Path

from components.commands.verify.metrics_file import VerificationMetrics
from components.commands.verify.report import Cause, Difference, DifferenceKind, TableVerification, VerificationReport

DOCUMENT = Path(__file__).parents[5] / "docs" / "reference" / "metrics.md"
CAUSE = Cause("a reason", None)


def samples(report: VerificationReport) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("astha_verify_"), *sample.labels.values()): sample.value
        for family in VerificationMetrics(report, 100.0, 2.0).collect()
        for sample in family.samples
    }


def different(name: str, *items: str) -> TableVerification:
    return TableVerification(name, "parquet", differences=[Difference(DifferenceKind.CHECKSUM, list(items), CAUSE)])


def test_differences_are_counted_with_those_of_no_table() -> None:
    elsewhere = [Difference(DifferenceKind.NO_REGISTRY_TABLE, ["shop.old"], CAUSE)]
    report = VerificationReport([different("shop.a", "x", "y"), TableVerification("shop.b", "parquet")], elsewhere)
    assert samples(report) == {
        ("tables",): 2,
        ("different_tables",): 1,
        ("differences",): 3,
        ("table_differences", "shop.a"): 2,
        ("last_run_timestamp_seconds",): 100.0,
        ("duration_seconds",): 2.0,
    }


def test_the_number_of_series_is_bounded() -> None:
    found = samples(VerificationReport([different(f"shop.t{number}", "x") for number in range(150)]))
    assert sum(name == "table_differences" for name, *_ in found) == 100
    assert (found["different_tables",], found["differences",]) == (150, 150)


def test_every_metric_is_documented() -> None:
    documented = set(re.findall(r"^\| `astha_verify_(\w+)", DOCUMENT.read_text(), re.MULTILINE))
    assert documented == {name for name, *_ in samples(VerificationReport([different("shop.a", "x")]))}
