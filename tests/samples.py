"""Valid inputs, so that a test states only what it is about."""

from __future__ import annotations

from typing import Any

from registry.inputs import CompactionDraft, FileDraft, SegmentDraft, SnapshotDraft, TableDraft
from registry.json_text import JsonText
from registry.models import (
    PUBLISHED,
    UNPUBLISHED,
    Agent,
    CatalogNamespace,
    CatalogRequest,
    CatalogTable,
    Compaction,
    ConsumerGroup,
    ConsumerOffset,
    DaemonLease,
    FileAwaitingDeletion,
    GroupLease,
    IcebergCommit,
    LakeLocation,
    LakeTable,
    LedgerEntry,
    Partition,
    PartitionLease,
    ProducerSequence,
    Row,
    RunningDaemon,
    Segment,
    SegmentObject,
    SourceIdentity,
    TableDeleteFile,
    TableFile,
    TableInsert,
    TableMetadata,
    TableSnapshot,
    TableStats,
    Topic,
    UploadIntent,
)

TABLE = TableDraft(schema=JsonText('{"fields":[{"id":1,"name":"n","type":"long"}]}'))


def segment(base: int = 0, end: int | None = None, *, topic: str = "orders", partition: int = 0) -> SegmentDraft:
    """Ten records from ``base`` unless ``end`` says otherwise."""
    end = base + 9 if end is None else end
    return SegmentDraft(
        topic=topic,
        partition_id=partition,
        base_offset=base,
        end_offset=end,
        record_count=max(end - base + 1, 0),
        size_bytes=1_000,
        s3_bucket="lake",
        s3_key=f"{topic}/{partition}/{base}",
        byte_offset=64,
    )


def file(path: str, *, rows: int = 10, size: int = 1_000, partition: str = "", version: int = 1) -> FileDraft:
    return FileDraft(
        file_path=path, file_size=size, row_count=rows, schema_version=version, partition_path=partition,
        checksum="crc32:1", column_stats=JsonText('{"1":{"value_count":10}}'),
    )  # fmt: skip


def snapshot(number: int, *, tag: str | None = None) -> SnapshotDraft:
    return SnapshotDraft(
        snapshot_id=number, timestamp=1_700_000_000_000, manifest_list=f"s3://lake/m{number}.avro",
        summary=JsonText('{"operation":"append"}'), schema_id=0, tag=tag,
    )  # fmt: skip


def decision(partition: str = "", *, table_id: int = 1, rule: str = "many small files", **rest: Any) -> CompactionDraft:
    return CompactionDraft(
        table_id=table_id, table_name="db.t", partition_path=partition, rule=rule,
        **{"input_files": 5, "input_bytes": 500, "explanation": JsonText('{"small":5}'), **rest},
    )  # fmt: skip


_NOW = 1_700_000_000_000
EMPTY = JsonText("{}")

ONE_OF_EACH: tuple[Row, ...] = (
    Topic("orders", 2, 86_400_000, JsonText('{"a":[1,null]}'), _NOW, _NOW),
    Partition("orders", 0, 10, _NOW, _NOW),
    Partition("orders", 1, 0, _NOW, _NOW),
    Segment(7, "orders", 0, 0, 9, 10, 1_000, "lake", "k", 0, _NOW, _NOW - 5, _NOW, "0abc"),
    SegmentObject("lake", "k", 1, 1_000, _NOW),
    ProducerSequence("orders", 0, "producer-1", 2, 9, 5, 5, _NOW),
    ConsumerGroup("readers", _NOW, _NOW),
    ConsumerOffset("readers", "orders", 0, 5, "note", _NOW),
    Agent("agent-1", "10.0.0.1:1", "a", "g", _NOW, _NOW, EMPTY),
    PartitionLease("orders", 0, "agent-1", _NOW + 1, _NOW, 3),
    GroupLease("readers", "orders", 0, "agent-1", _NOW + 1, _NOW, 2),
    LakeTable(11, "db", "t", "s3://lake/t", 10, 1_000, 1, _NOW, "active", _NOW, _NOW),
    TableMetadata(12, 11, 1, TABLE.schema, "parquet", EMPTY, "parquet", "zstd",
                  JsonText("[]"), JsonText("[]"), EMPTY, _NOW, _NOW, _NOW),
    TableFile(13, 11, "f.parquet", "s3://lake/t/f.parquet", 1_000, "parquet", "d=1", 10, None, True, 1,
              JsonText('{"1":{"value_count":10}}'), "compaction", "swap-1", _NOW, _NOW),
    TableStats(14, 11, "d=1", 10, 1, 1_000, _NOW, _NOW, _NOW),
    TableSnapshot(15, 11, 2**62, _NOW, None, EMPTY, 0, "manual", "created", "v1", None, _NOW, _NOW),
    LedgerEntry("compactor", 42, JsonText('{"last":41}'), JsonText('["table_files"]'), "live", False, None, _NOW,
                "astha"),
    DaemonLease("astha", "host-1", 2, _NOW, _NOW + 1),
    RunningDaemon("host-1:7:ab", "astha", "host-1", 7, "leader", "sqlite", JsonText('["compactor"]'), "1", _NOW, _NOW),
    SourceIdentity("registry", "system-1/1", _NOW),
    UploadIntent("s3://lake/t/g.parquet", "insert", "writer-1", _NOW),
    FileAwaitingDeletion(16, 11, "s3://lake/t/h.parquet", 5, "compaction swap-1", EMPTY, _NOW),
    Compaction(17, 11, "db.t", "d=1", "done", "event", "many small files", "binpack", EMPTY, 41, 5, 1_200, 1, 1_000, 10,
               "swap-1", "host-1", False, None, _NOW, _NOW, _NOW, _NOW),
    CatalogTable("astha", "db", "t", "s3://lake/t/metadata/2.json", "s3://lake/t/metadata/1.json", "TABLE"),
    CatalogNamespace("astha", "db", "exists", "true"),
    IcebergCommit(18, 11, 2**62, None, "append", "Spark 4", 1, 0, 10, 0, 1, 0, "s3://lake/t/metadata/2.json",
                  _NOW, _NOW),
    TableDeleteFile(19, 11, "s3://lake/t/d.parquet", 500, "parquet", "position", 3, "d=1", 0, None,
                    "s3://lake/t/f.parquet", 0, 2, 2**62, _NOW, _NOW),
    CatalogRequest("6f3c", "sha256:1", None, _NOW),
    LakeLocation("warehouse", "s3://lake", _NOW),
    TableInsert(11, "load-1", 10, 1, _NOW),
)  # fmt: skip
"""A whole small registry, parents before children: each table has a row."""

assert {type(row) for row in ONE_OF_EACH} == {*PUBLISHED, *UNPUBLISHED}
