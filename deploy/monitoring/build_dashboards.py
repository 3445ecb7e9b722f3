"""Writes dashboards/*.json for Grafana: `python deploy/monitoring/build_dashboards.py`.

The files are kept in the repository, so nothing has to be built for a deployment. A test fails if they differ from this
program's output.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent / "dashboards"
COLUMNS = 24
SCHEMA_VERSION = 39  # of Grafana 10.4 and newer

HERE = 'instance=~"$instance"'
OF = 'instance=~"$instance", component=~"$component"'
API = 'route=~"/v1/.+"'
COMMITS = 'method="POST", route=~".+/tables/[{]table[}]|/v1/transactions/commit"'
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """`queries` are pairs of an expression and its legend."""

    title: str
    unit: str
    queries: Sequence[tuple[str, str]]
    description: str
    kind: str = "timeseries"
    width: int = 8
    height: int = 7
    stacked: bool = False


@dataclass(frozen=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    rows: Sequence[Row]
    components: bool = False  # has the variable `component`


def rate(metric: str, by: str, where: str = HERE) -> str:
    return f"sum by ({by}) (rate({metric}{{{where}}}[$__rate_interval]))"


def stat(title: str, unit: str, expression: str, description: str) -> Panel:
    return Panel(title, unit, [(expression, "")], description, kind="stat", width=4, height=4)


DAEMON = Dashboard("daemon", "Astha / Daemon", [
    Row("Overview", [
        stat("Leaders", "none", 'sum(group:astha_leading:sum{group=~"$group"})', "One per group."),
        stat("Daemons", "none", 'count(astha_daemon_info{group=~"$group"})', "Leaders and standbys."),
        stat("Sources connected", "none", f"sum(astha_source_connected{{{HERE}}})", "One per leader."),
        stat("Components live", "none", f'sum(astha_component_state{{{HERE}, state="live"}})', "Of all leaders."),
        stat(
            "Components not live", "none", f'count(astha_component_state{{{HERE}, state="live"}} == 0) or vector(0)',
            "Circuit open, refreshing, held or paused.",
        ),
        stat("Problems", "none", f"sum(astha_component_problems{{{HERE}}})", "`astha status` lists them."),
    ]),
    Row("Leadership", [
        Panel("Who leads", "none", [(f"astha_leading{{{HERE}}}", "{{instance}}")], "1 leads, 0 stands by."),
        Panel(
            "Lease epoch", "none", [('group:astha_lease_epoch:max{group=~"$group"}', "{{group}}")],
            "Increases with every change of leadership.",
        ),
        Panel("Clock trusted", "none", [(f"astha_clock_trusted{{{HERE}}}", "{{instance}}"),
            (f"increase(astha_clock_jumps_total{{{HERE}}}[1h])", "{{instance}} jumps in an hour")],
            "While it is 0, nothing is deleted by age."),
    ]),
    Row("Source", [
        Panel("Lag", "bytes", [(f"astha_source_lag_bytes{{{HERE}}}", "{{instance}}")],
            "WAL that the server has written and the stream has not received."),
        Panel("Lag on SQLite", "short", [(f"astha_source_lag_changes{{{HERE}}}", "{{instance}}")],
            "Rows of the change log that were not read."),
        Panel("Silence", "s", [(f"astha_source_silence_seconds{{{HERE}}}", "{{instance}}")],
            "Time since the server sent anything, including keepalives."),
        Panel("Retained for the daemon", "bytes", [
            (f"astha_source_retained_bytes{{{HERE}}}", "{{instance}}"),
            (f"astha_source_retained_budget_bytes{{{HERE}}}", "{{instance}} budget")],
            "At nine tenths of the budget the circuit of the slowest component opens."),
        Panel("Not acknowledged", "short", [
            (f"astha_source_received_position{{{HERE}}} - astha_source_acknowledged_position{{{HERE}}}",
             "{{instance}}")],
            "Distance of positions: bytes of WAL on PostgreSQL, changes on SQLite."),
        Panel("Slot", "none", [(f"astha_source_wal_status{{{HERE}}} == 1", "{{instance}} {{status}}")],
            "wal_status of the replication slot."),
    ]),
    Row("Process", [
        Panel("CPU", "percentunit", [(f"rate(process_cpu_seconds_total{{{HERE}}}[$__rate_interval])", "{{instance}}")],
            "Cores in use, without the listener's process."),
        Panel("Memory", "bytes", [(f"process_resident_memory_bytes{{{HERE}}}", "{{instance}}")], "Resident memory."),
        Panel("Open files", "percentunit", [
            (f"process_open_fds{{{HERE}}} / process_max_fds{{{HERE}}}", "{{instance}}")], "Share of the limit."),
        Panel("HTTP", "none", [
            (f"astha_server_connections{{{HERE}}}", "{{instance}} connections"),
            (f"astha_server_watchers{{{HERE}}}", "{{instance}} watchers")], "Open connections; readers of events."),
        Panel("HTTP trouble", "ops", [
            (f"rate(astha_server_refused_connections_total{{{HERE}}}[$__rate_interval])", "{{instance}} refused"),
            (f"rate(astha_server_missed_events_total{{{HERE}}}[$__rate_interval])", "{{instance}} missed events"),
            (f"rate(astha_server_restarts_total{{{HERE}}}[$__rate_interval])", "{{instance}} restarts")],
            "Connections refused, events that watchers missed, restarts of the listener."),
        Panel("Disks", "percentunit", [
            ('1 - node_filesystem_avail_bytes{fstype!~"tmpfs|ramfs|overlay|squashfs|iso9660"} / '
             "node_filesystem_size_bytes", "{{instance}} {{mountpoint}}")],
            "Share in use, of all machines with a node_exporter."),
    ]),
])  # fmt: skip

COMPONENTS = Dashboard("components", "Astha / Components", [
    Row("State", [
        Panel("State", "none", [(f"astha_component_state{{{OF}}} == 1", "{{component}} {{state}}")],
            "One line per component and state.", width=12),
        Panel("Circuit breaker", "none", [
            (f'astha_component_breaker_state{{{OF}, state!="closed"}}', "{{component}} {{state}}")],
            "1 while the breaker is open or half-open.", width=12),
    ]),
    Row("Delivery", [
        Panel("Latency, median", "s", [
            (f"component:astha_component_delivery_latency_seconds:p50_5m{{{OF}}}", "{{component}}")],
            "From commit to delivery, per transaction."),
        Panel("Latency, 99th percentile", "s", [
            (f"component:astha_component_delivery_latency_seconds:p99_5m{{{OF}}}", "{{component}}")],
            "From commit to delivery, per transaction."),
        Panel("Latency, mean", "s", [
            (f"component:astha_component_delivery_latency_seconds:mean_5m{{{OF}}}", "{{component}}")],
            "From commit to delivery, per transaction."),
        Panel("Transactions", "ops", [
            (f"component:astha_component_transactions:rate5m{{{OF}}}", "{{component}}")], "Delivered per second."),
        Panel("Events", "ops", [(f"component:astha_component_events:rate5m{{{OF}}}", "{{component}}")],
            "Delivered per second."),
        Panel("Events by table", "ops", [
            (rate("astha_component_events_total", "table, operation", OF), "{{table}} {{operation}}")],
            "Delivered per second, summed over the components.", stacked=True),
    ]),
    Row("Lag and queues", [
        Panel("Lag", "s", [(f"astha_component_lag_seconds{{{OF}}}", "{{component}}")],
            "Age of the oldest queued commit; of a component that is not live, at least the time since it was."),
        Panel("Lag in WAL", "bytes", [(f"astha_component_lag_bytes{{{OF}}}", "{{component}}")],
            "Between the stream's position and the component's."),
        Panel("Lag on SQLite", "short", [(f"astha_component_lag_changes{{{OF}}}", "{{component}}")],
            "Rows of the change log between the stream's position and the component's."),
        Panel("Queue", "percentunit", [(f"component:astha_component_queue:ratio{{{OF}}}", "{{component}}")],
            "Share of the limit of events or bytes, the larger one. At 1 the circuit opens."),
        Panel("Queued events", "short", [(f"astha_component_queue_events{{{OF}}}", "{{component}}")], "Now."),
        Panel("Queued bytes", "bytes", [(f"astha_component_queue_bytes{{{OF}}}", "{{component}}")],
            "As received."),
    ]),
    Row("Trouble", [
        Panel("Failed calls", "ops", [
            (rate("astha_component_failures_total", "component", OF), "{{component}}")], "They are retried."),
        Panel("Calls", "ops", [(rate("astha_component_attempts_total", "component", OF), "{{component}}")],
            "With events, including failed ones."),
        Panel("Drops in an hour", "short", [
            (f"increase(astha_component_drops_total{{{OF}}}[1h])", "{{component}}")], "A refresh follows."),
        Panel("Circuit openings in an hour", "short", [
            (f"increase(astha_component_circuit_openings_total{{{OF}}}[1h])", "{{component}}")], "And holds."),
        Panel("Refreshes in an hour", "short", [
            (f"increase(astha_component_refreshes_total{{{OF}}}[1h])", "{{component}}"),
            (f"increase(astha_component_failed_refreshes_total{{{OF}}}[1h])", "{{component}} failed")],
            "Each one reads the registry."),
        Panel("Problems", "short", [(f"astha_component_problems{{{OF}}}", "{{component}}")],
            "Tables and the like that a component can't process; `astha status` lists them."),
    ]),
], components=True)  # fmt: skip

LAKE = Dashboard("lake", "Astha / Lake", [
    Row("Iceberg", [
        Panel("Commits", "ops", [
            (rate("astha_iceberg_updater_commits_total", "instance"), "{{instance}} commits"),
            (rate("astha_iceberg_updater_snapshots_total", "instance"), "{{instance}} snapshots")],
            "Commits to Iceberg tables, and the snapshots in them."),
        Panel("Tables that wait for an operator", "none", [
            (f"astha_iceberg_updater_table_stopped{{{HERE}}}", "{{table}}")], "`astha iceberg status` says why."),
        Panel("Failed attempts by table", "short", [
            (f"astha_iceberg_updater_table_attempts{{{HERE}}}", "{{table}}")], "The update is retried."),
    ]),
    Row("Compaction", [
        Panel("Jobs in an hour", "short", [
            (f"sum by (status) (increase(astha_compactor_jobs_total{{{HERE}}}[1h]))", "{{status}}")],
            "Ended jobs by outcome.", stacked=True),
        Panel("Waiting partitions", "short", [
            (f"astha_compactor_waiting_partitions{{{HERE}}}", "{{instance}} waiting"),
            (f"astha_compactor_partitions{{{HERE}}}", "{{instance}} counted")],
            "Partitions that wait for a job, and those whose small files are counted."),
        Panel("Waiting bytes", "bytes", [
            (f"astha_compactor_waiting_bytes{{{HERE}}}", "{{instance}} waiting"),
            (f"astha_compactor_budget_bytes{{{HERE}}}", "{{instance}} budget left")],
            "Bytes that waiting partitions would rewrite, and what the hourly limit allows now."),
        Panel("Files", "ops", [
            (rate("astha_compactor_input_files_total", "instance"), "{{instance}} merged"),
            (rate("astha_compactor_output_files_total", "instance"), "{{instance}} written")], "Per second."),
        Panel("Bytes", "Bps", [
            (rate("astha_compactor_input_bytes_total", "instance"), "{{instance}} merged"),
            (rate("astha_compactor_output_bytes_total", "instance"), "{{instance}} written")], "Per second."),
        Panel("Rows", "rowsps", [(rate("astha_compactor_rows_total", "instance"), "{{instance}}")],
            "Merged per second."),
        Panel("Time by phase", "s", [
            (f"sum by (phase) (increase(astha_compactor_seconds_total{{{HERE}}}[1h]))", "{{phase}}")],
            "Spent in an hour.", stacked=True),
        Panel("Progress of running jobs", "percentunit", [
            (f"astha_compactor_progress{{{HERE}}}", "{{table}} {{partition}}")], "Share of the bytes."),
        Panel("Decisions in an hour", "short", [
            (f"sum by (status, rule) (increase(astha_compactor_decisions_total{{{HERE}}}[1h]))",
             "{{status}} {{rule}}")], "By status and rule.", stacked=True),
        Panel("Spark", "none", [
            (f"astha_compactor_session_unavailable{{{HERE}}}", "{{instance}} no session"),
            (f"astha_compactor_stuck_jobs{{{HERE}}}", "{{instance}} stuck jobs")], "Both should be 0."),
        Panel("Memory of Spark", "bytes", [
            (f"astha_compactor_memory_bytes{{{HERE}}}", "{{instance}} {{process}}")],
            "Resident memory of the session's processes on the daemon's machine."),
        Panel("Files left out", "short", [
            (f"astha_compactor_left_out_files{{{HERE}}}", "{{table}}")], "Files that can't be read."),
    ]),
    Row("Snapshots and maintenance", [
        Panel("Snapshots in an hour", "short", [
            (f"sum by (status) (increase(astha_snapshotter_snapshots_total{{{HERE}}}[1h]))", "{{status}}")],
            "Created, failed, expired.", stacked=True),
        Panel("Tables that wait", "short", [
            (f"astha_snapshotter_tables_due{{{HERE}}}", "{{instance}} due"),
            (f"astha_snapshotter_tables_waiting{{{HERE}}}", "{{instance}} requested")], "For a snapshot."),
        Panel("Deleted in an hour", "short", [
            (f"increase(astha_snapshotter_files_deleted_total{{{HERE}}}[1h])", "{{instance}} files of snapshots"),
            (f"increase(astha_metadata_orchestrator_objects_deleted_total{{{HERE}}}[1h])",
             "{{instance}} abandoned uploads"),
            (f"increase(astha_metadata_orchestrator_tables_dropped_total{{{HERE}}}[1h])",
             "{{instance}} dropped tables")], "Objects in storage, and tables."),
        Panel("Maintenance that failed in an hour", "short", [
            (f"increase(astha_snapshotter_maintenance_failures_total{{{HERE}}}[1h])", "{{instance}} snapshotter"),
            (f"increase(astha_metadata_orchestrator_maintenance_failures_total{{{HERE}}}[1h])",
             "{{instance}} orchestrator")], "Steps are retried."),
        Panel("Tables with a problem", "short", [
            (f"astha_metadata_orchestrator_problems{{{HERE}}}", "{{instance}} problems"),
            (f"astha_metadata_orchestrator_deletions_refused{{{HERE}}}", "{{instance}} deletions refused")],
            "Of the metadata orchestrator."),
    ]),
    Row("REST catalog", [
        Panel("Requests", "ops", [(rate("astha_catalog_requests_total", "status", API), "{{status}}")],
            "Of engines, by status, of all catalogs.", stacked=True),
        Panel("Commits", "ops", [(rate("astha_catalog_requests_total", "instance, status", COMMITS),
            "{{instance}} {{status}}")], "To one table or several, by status. 409 is a conflict."),
        Panel("Time of a commit", "s", [
            (f"histogram_quantile({share}, {rate('astha_catalog_request_seconds_bucket', 'instance, le', COMMITS)})",
             f"{{{{instance}}}} {name}") for share, name in ((0.5, "median"), (0.95, "95th percentile"))],
            "Until the catalog has responded."),
    ]),
    Row("Verification", [
        Panel("Differences", "short", [("astha_verify_differences", "{{instance}}")],
            "Of the last `astha verify --metrics`."),
        Panel("Tables", "short", [
            ("astha_verify_tables", "{{instance}} verified"),
            ("astha_verify_different_tables", "{{instance}} different")], "Of the last `astha verify --metrics`."),
        Panel("Time since the last one", "s", [
            ("time() - astha_verify_last_run_timestamp_seconds", "{{instance}} ago"),
            ("astha_verify_duration_seconds", "{{instance}} duration")], "Complete verifications."),
    ]),
])  # fmt: skip

STREAMS = Dashboard("streams", "Astha / Streams", [
    Row("Consumers", [
        Panel("Consumer lag", "short", [
            (f"astha_segment_store_consumer_lag_records{{{HERE}}}", "{{consumer_group}} {{topic}}")],
            "Records that a group has not committed.", width=12),
        Panel("Time without a commit", "s", [
            (f"astha_segment_store_consumer_idle_seconds{{{HERE}}}", "{{consumer_group}} {{topic}}")],
            "Of the partition with lag that was committed longest ago.", width=12),
    ]),
    Row("Agents", [
        Panel("Leases", "none", [(f"astha_segment_store_leases{{{HERE}}}", "{{state}}")],
            "Of partitions, by state.", stacked=True),
        Panel("Agents with leases", "none", [(f"astha_segment_store_lease_holders{{{HERE}}}", "{{instance}}")],
            "Agents that hold at least one lease."),
        Panel("Takeovers in an hour", "short", [
            (f"increase(astha_segment_store_lease_takeovers_total{{{HERE}}}[1h])", "{{instance}}")],
            "Leases that moved to another agent."),
    ]),
    Row("Segment store", [
        Panel("Blocks", "ops", [(rate("astha_segment_store_blocks_total", "found"), "{{found}}")],
            "Read in the daemon's process, by where they were found.", stacked=True),
        Panel("Storage requests", "ops", [
            (rate("astha_segment_store_storage_requests_total", "instance"), "{{instance}}"),
            (rate("astha_segment_store_corrupt_blocks_total", "instance"), "{{instance}} corrupt blocks")],
            "Range requests; blocks that failed their checks."),
        Panel("Cache", "bytes", [(f"astha_segment_store_cache_bytes{{{HERE}}}", "{{instance}}")],
            "Decoded blocks in memory."),
        Panel("Index", "short", [
            (f"astha_segment_store_index_segments{{{HERE}}}", "{{instance}} segments"),
            (f"astha_segment_store_merge_candidates{{{HERE}}}", "{{instance}} partitions to merge")],
            "Segments in memory; partitions with new small segments."),
        Panel("Segments", "ops", [
            (rate("astha_segment_store_segments_expired_total", "instance"), "{{instance}} expired"),
            (rate("astha_segment_store_segments_merged_total", "instance"), "{{instance}} merged"),
            (rate("astha_segment_store_maintenance_failures_total", "instance"), "{{instance}} failed steps")],
            "Maintenance, per second."),
        Panel("Merged bytes", "Bps", [
            (rate("astha_segment_store_merged_bytes_total", "instance"), "{{instance}}")], "Written by merges."),
    ]),
    Row("Sinks", [
        Panel("Brokers", "none", [
            ('label_replace({__name__=~"astha_.+_broker_connected", instance=~"$instance"}, '
             '"component", "$1", "__name__", "astha_(.+)_broker_connected")', "{{component}} {{broker}}")],
            "1 while the sink can use its broker."),
        Panel("Kafka records", "ops", [
            (rate("astha_kafka_sink_records_total", "instance"), "{{instance}}")], "Acknowledged per second."),
        Panel("Kafka bytes", "Bps", [
            (rate("astha_kafka_sink_bytes_total", "instance"), "{{instance}}")], "Keys and values."),
        Panel("Kafka acknowledgement", "s", [
            (f"rate(astha_kafka_sink_acknowledge_seconds_total{{{HERE}}}[$__rate_interval]) / "
             f"(rate(astha_kafka_sink_deliveries_total{{{HERE}}}[$__rate_interval]) > 0)", "{{instance}}")],
            "Mean time from a batch to its last acknowledgement."),
        Panel("Kafka failures", "ops", [
            (rate("astha_kafka_sink_failed_attempts_total", "instance"), "{{instance}} attempts"),
            (rate("astha_kafka_sink_producer_failures_total", "instance"), "{{instance}} producers replaced")],
            "They are retried."),
        Panel("MQTT messages", "ops", [
            (rate("astha_mqtt_sink_messages_total", "kind"), "{{kind}}")], "Acknowledged per second.", stacked=True),
        Panel("MQTT in flight", "short", [
            (f"astha_mqtt_sink_in_flight{{{HERE}}}", "{{instance}}")], "Messages not yet acknowledged."),
        Panel("MQTT trouble", "ops", [
            (rate("astha_mqtt_sink_refused_total", "instance"), "{{instance}} refused"),
            (rate("astha_mqtt_sink_oversized_total", "instance"), "{{instance}} too large"),
            (rate("astha_mqtt_sink_connections_total", "instance"), "{{instance}} connections")],
            "Refused deliveries, changes sent without payload, new connections."),
    ]),
])  # fmt: skip

DASHBOARDS = (DAEMON, COMPONENTS, LAKE, STREAMS)


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": DATASOURCE, "query": query, "definition": query,
        "refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    """The instances are those of the chosen groups: only `astha_daemon_info` has the group."""
    found = [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        _variable("group", "Group", "label_values(astha_daemon_info, group)"),
        _variable("instance", "Daemon", 'label_values(astha_daemon_info{group=~"$group"}, instance)'),
    ]
    if dashboard.components:
        query = 'label_values(astha_component_state{instance=~"$instance"}, component)'
        found.append(_variable("component", "Component", query))
    return found


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    defaults: dict[str, Any] = {"unit": panel.unit}
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        defaults |= {"min": 0, "custom": {"fillOpacity": 20 if panel.stacked else 5, "stacking": stacking}}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "id": number, "title": panel.title, "type": panel.kind, "description": panel.description,
        "datasource": DATASOURCE, "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": options, "targets": targets,
    }  # fmt: skip


def _panels(dashboard: Dashboard) -> list[dict[str, Any]]:
    """Places the panels of a row from left to right, and begins a new line when they do not fit."""
    found: list[dict[str, Any]] = []
    y = 0
    for row in dashboard.rows:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        found.append({"id": len(found) + 1, "type": "row", "title": row.title, "collapsed": False, "gridPos": place,
                      "panels": []})  # fmt: skip
        x, y = 0, y + 1
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y = 0, y + panel.height
            found.append(_panel(panel, len(found) + 1, x, y))
            x += panel.width
        y += row.panels[-1].height
    return found


def rendered(dashboard: Dashboard) -> str:
    """Returns the dashboard as Grafana reads it from a file."""
    content = {
        "uid": f"astha-{dashboard.name}", "title": dashboard.title, "tags": ["astha"], "editable": True,
        "schemaVersion": SCHEMA_VERSION, "version": 1, "refresh": "30s", "timezone": "browser",
        "time": {"from": "now-6h", "to": "now"}, "graphTooltip": 1,
        "links": [{"type": "dashboards", "title": "Astha", "tags": ["astha"], "asDropdown": True, "keepTime": True}],
        "templating": {"list": _variables(dashboard)}, "annotations": {"list": []}, "panels": _panels(dashboard),
    }  # fmt: skip
    return json.dumps(content, indent=2) + "\n"


def main() -> None:
    for dashboard in DASHBOARDS:
        (DIRECTORY / f"{dashboard.name}.json").write_text(rendered(dashboard))


if __name__ == "__main__":
    main()
