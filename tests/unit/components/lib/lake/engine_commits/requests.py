"""Requests as clients send them."""

from __future__ import annotations

from typing import Any

import msgspec

from components.lib.lake.engine_commits import CommitRequest, CreateRequest, IcebergMetadata

NOW = 1_700_000_000_000
LOCATION = "file:///lake/shop/orders"
FILE = f"{LOCATION}/metadata/00000-0.metadata.json"

SCHEMA: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "ts", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "region", "required": False, "type": "string"},
    ],
}


def commit(*updates: dict[str, Any], requirements: list[dict[str, Any]] | None = None) -> CommitRequest:
    body = {"requirements": requirements or [], "updates": list(updates)}
    return CommitRequest.parse(msgspec.json.encode(body))


def applied(base: IcebergMetadata | None, *updates: dict[str, Any], now_ms: int = NOW + 1_000) -> IcebergMetadata:
    return commit(*updates).apply(base, FILE, now_ms=now_ms)


def created(**more: Any) -> IcebergMetadata:
    body = {"name": "orders", "schema": SCHEMA, **more}
    return CreateRequest.parse(msgspec.json.encode(body)).metadata(LOCATION, now_ms=NOW)


def add_snapshot(
    number: int, parent: int | None = None, *, at: int = NOW, sequence: int | None = None
) -> dict[str, Any]:
    snapshot: dict[str, Any] = {
        "snapshot-id": number,
        "sequence-number": number if sequence is None else sequence,
        "timestamp-ms": at,
        "manifest-list": f"{LOCATION}/metadata/snap-{number}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    return {"action": "add-snapshot", "snapshot": snapshot}


def set_ref(number: int, name: str = "main", kind: str = "branch", **more: int) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": number, **more}


def with_snapshots(base: IcebergMetadata, *numbers: int) -> IcebergMetadata:
    """Appends snapshots to main, one commit each."""
    for number in numbers:
        parent = base.current_snapshot_id
        base = applied(base, add_snapshot(number, parent, at=NOW + number), set_ref(number), now_ms=NOW + number)
    return base
