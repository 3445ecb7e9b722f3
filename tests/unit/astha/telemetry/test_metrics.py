from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from astha.clock_guard import ClockGuard, ClockSettings
from astha.server.metrics import ListenerCollector
from astha.subscribers import Metric
from astha.telemetry import DaemonCollector
from astha.testing import RecordingSubscriber
from registry.models import DatabaseTime
from tests.unit.astha.server.daemons import Stage, topics

DOCUMENT = Path(__file__).parents[4] / "docs" / "reference" / "metrics.md"


def exposed(stage: Stage) -> dict[str, dict[tuple[str, ...], float]]:
    """Samples by name and label values, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(DaemonCollector(stage.daemon, stage.clock, "sqlite"))
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def no_database() -> DatabaseTime:
    return DatabaseTime(None)


async def busy_stage() -> Stage:
    stage = Stage("audit", "index")
    await stage.lead()
    stage.daemon.clock_guard = ClockGuard(stage.clock, ClockSettings(), no_database)
    audit, index = stage.daemon.lanes
    committed = (stage.clock.now_ms() - 3) * 1000
    audit.counts.delivered["topics", "INSERT"] += 3
    audit.counts.latency_us[(3000).bit_length()] += 2  # two transactions of 3 ms
    audit.counts.latency_sum_us += 6000
    index.open_circuit("it raised")
    stage.pass_by(topics(950, "d", committed_at=committed))
    return stage


async def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    documented = set(re.findall(r"^\| `(astha_(?!catalog_|tracing_|verify_)\w+)", DOCUMENT.read_text(), re.MULTILINE))
    names = {re.sub(r"(?<=latency_seconds)_(bucket|sum|count)$", "", name) for name in exposed(await busy_stage())}
    names |= {sample.name for family in ListenerCollector().collect() for sample in family.samples}
    elsewhere = {f"astha_{what}_lag_{unit}" for what in ("component", "source") for unit in ("changes", "nanoseconds")}
    assert elsewhere <= documented  # of SQLite and CockroachDB
    assert documented - elsewhere == names


async def test_the_metrics_of_a_busy_daemon() -> None:
    found = exposed(await busy_stage())
    assert found["astha_leading"] == {(): 1}
    assert found["astha_clock_trusted"] == {(): 1}
    assert found["astha_component_events_total"] == {("audit", "INSERT", "topics"): 3}
    assert found["astha_component_state"]["index", "broken"] == 1
    assert found["astha_component_state"]["index", "live"] == 0
    assert found["astha_component_breaker_state"]["index", "open"] == 1
    assert found["astha_component_circuit_openings_total"] == {("audit",): 0, ("index",): 1}
    assert found["astha_component_queue_events"] == {("audit",): 1, ("index",): 0}
    assert found["astha_component_lag_bytes"] == {("audit",): 100, ("index",): 100}
    assert found["astha_component_lag_seconds"]["audit",] == 0.003
    assert found["astha_source_lag_bytes"] == {(): 50}
    assert found["astha_source_retained_bytes"] == {(): 300}
    assert found["astha_source_retained_budget_bytes"] == {(): 1024**3}
    assert found["astha_source_wal_status"][("reserved",)] == 1


async def test_latency_is_a_histogram_per_transaction() -> None:
    found = exposed(await busy_stage())
    name = "astha_component_delivery_latency_seconds"
    buckets = {float(le): number for (who, le), number in found[f"{name}_bucket"].items() if who == "audit"}
    assert buckets[float("inf")] == found[f"{name}_count"]["audit",] == 2
    assert found[f"{name}_sum"]["audit",] == 0.006
    assert {number for le, number in buckets.items() if le < 0.003} == {0}
    assert {number for le, number in buckets.items() if le > 0.003} == {2}


class Weighing(RecordingSubscriber):
    broken = False

    def metrics(self) -> Iterable[Metric]:
        yield Metric("weight_kg", "What it weighs.", 3, {"part": "head"})
        if self.broken:
            raise RuntimeError("no scales")
        yield Metric("weight_kg", "What it weighs.", 4, {"part": "foot"})
        yield Metric("weighings", "How often.", 2, kind="counter")


async def test_a_component_may_have_metrics_of_its_own() -> None:
    stage = Stage("audit", "index")
    await stage.lead()
    weighing = Weighing("topics")
    stage.daemon.components[0] = msgspec.structs.replace(stage.daemon.components[0], subscriber=weighing)
    found = exposed(stage)
    assert found["astha_audit_weight_kg"] == {("head",): 3, ("foot",): 4}
    assert found["astha_audit_weighings_total"] == {(): 2}
    weighing.broken = True
    found = exposed(stage)
    assert "astha_audit_weight_kg" not in found
    assert "astha_component_state" in found


async def test_a_standby_has_no_metrics_of_components() -> None:
    found = exposed(Stage("audit"))
    assert found["astha_leading"] == {(): 0}
    assert found["astha_daemon_info"] == {("astha", "sqlite"): 1}
    assert found.keys() == {"astha_build_info", "astha_daemon_info", "astha_leading"}
