"""The statements that implement a bulk verb each.

Each locks its rows, checks the locked versions, and writes only if no check fails; failed checks come back as rows.
This is correct at READ COMMITTED: FOR UPDATE and UPDATE see the newest version of a row that another transaction
changed during the wait, although the statement's own snapshot is older. Decisions must use locked rows only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
from sqlalchemy import ARRAY, BigInteger, Boolean, Integer, Text, bindparam, column, text
from sqlalchemy.sql.expression import TextualSelect

from registry.schema import table_files


class PositionalStatement(msgspec.Struct, frozen=True):
    """A statement with PostgreSQL's own ``$1``, ``$2`` parameters instead of names.

    Saves SQLAlchemy and psycopg from parsing a long statement at every execution.
    """

    text: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, named: str) -> PositionalStatement:
        names = tuple(dict.fromkeys(_NAME.findall(named)))
        numbers = {name: f"${number}" for number, name in enumerate(names, 1)}
        return cls(_NAME.sub(lambda found: numbers[found[1]], named), names)

    def parameters(self, values: Mapping[str, object]) -> tuple[object, ...]:
        return tuple(values[name] for name in self.names)


_NAME = re.compile(r"(?<!:):([a-z]\w*)")

# A segment that starts below its partition's watermark may fit between others or overlap one. Deciding that needs other
# segments, which this statement's snapshot may not see: the statement returns `late`, writes nothing, and the caller
# repeats the verb in a transaction of several statements.
#
# Rows are locked in the given order, so the caller sorts them. The plan of a prepared statement may have been made for
# small tables and must suit large ones. LATERAL forces a lookup by key per row. So does LIMIT NULL, which limits
# nothing: the planner does not know that, and expects only a tenth of the rows.
ADD_SEGMENTS = PositionalStatement.of(
    """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:topic AS text[]), CAST(:partition_id AS int[]), CAST(:base_offset AS bigint[]),
        CAST(:end_offset AS bigint[]), CAST(:record_count AS bigint[]), CAST(:size_bytes AS bigint[]),
        CAST(:s3_bucket AS text[]), CAST(:s3_key AS text[]), CAST(:byte_offset AS bigint[]),
        CAST(:min_timestamp AS bigint[]), CAST(:max_timestamp AS bigint[]), CAST(:block_index AS text[])
    ) AS g (topic, partition_id, base_offset, end_offset, record_count, size_bytes, s3_bucket, s3_key, byte_offset,
            min_timestamp, max_timestamp, block_index)
), partition AS MATERIALIZED (
    SELECT s.*, p.high_watermark FROM unnest(
        CAST(:range_topic AS text[]), CAST(:range_partition_id AS int[]),
        CAST(:range_first AS bigint[]), CAST(:range_next AS bigint[])
    ) AS s (topic, partition_id, first, next)
    LEFT JOIN LATERAL (
        SELECT p.high_watermark FROM partitions p
        WHERE p.topic = s.topic AND p.partition_id = s.partition_id FOR NO KEY UPDATE
    ) p ON true
), fence AS MATERIALIZED (
    SELECT f.*, l.leader_agent_id, l.epoch AS lease_epoch FROM unnest(
        CAST(:fence_topic AS text[]), CAST(:fence_partition_id AS int[]),
        CAST(:fence_agent AS text[]), CAST(:fence_epoch AS bigint[])
    ) AS f (topic, partition_id, agent, epoch)
    LEFT JOIN LATERAL (
        SELECT l.leader_agent_id, l.epoch FROM partition_leases l
        WHERE l.topic = f.topic AND l.partition_id = f.partition_id FOR SHARE
    ) l ON true
), object AS MATERIALIZED (
    SELECT o.*, i.path AS intended, u.s3_key AS used FROM unnest(
        CAST(:object_bucket AS text[]), CAST(:object_key AS text[]), CAST(:object_path AS text[]),
        CAST(:object_segments AS bigint[]), CAST(:object_size AS bigint[])
    ) AS o (s3_bucket, s3_key, path, live_segments, size_bytes)
    LEFT JOIN LATERAL (
        SELECT i.path FROM upload_intents i
        WHERE i.path = o.path AND i.owner = CAST(:intents_of AS text) FOR UPDATE
    ) i ON true
    LEFT JOIN LATERAL (
        SELECT u.s3_key FROM segment_objects u
        WHERE u.s3_bucket = o.s3_bucket AND u.s3_key = o.s3_key FOR UPDATE
    ) u ON true
), producer AS MATERIALIZED (
    SELECT p.*, w.epoch AS known_epoch, w.last_sequence AS known_sequence FROM unnest(
        CAST(:producer_topic AS text[]), CAST(:producer_partition_id AS int[]), CAST(:producer_id AS text[]),
        CAST(:producer_epoch AS bigint[]), CAST(:producer_first AS bigint[]), CAST(:producer_last AS bigint[]),
        CAST(:producer_base AS bigint[]), CAST(:producer_count AS bigint[])
    ) AS p (topic, partition_id, producer_id, epoch, first_sequence, last_sequence, base_offset, record_count)
    LEFT JOIN LATERAL (
        SELECT w.epoch, w.last_sequence FROM producer_sequences w
        WHERE w.topic = p.topic AND w.partition_id = p.partition_id AND w.producer_id = p.producer_id FOR UPDATE
    ) w ON true
), refused AS MATERIALIZED (
    SELECT topic, partition_id, CASE WHEN high_watermark IS NULL THEN 'missing' ELSE 'late' END AS why
    FROM partition WHERE high_watermark IS NULL OR high_watermark > first
    UNION ALL
    SELECT topic, partition_id, 'fenced' FROM fence
    WHERE (leader_agent_id, lease_epoch) IS DISTINCT FROM (agent, epoch)
    UNION ALL
    SELECT path, 0, 'lost' FROM object
    WHERE CAST(:intents_of AS text) IS NOT NULL AND intended IS NULL AND used IS NULL
    UNION ALL
    SELECT topic || '/' || producer_id, partition_id, 'out of sequence' FROM producer
    WHERE NOT (epoch > known_epoch OR (epoch = known_epoch AND first_sequence = known_sequence + 1))
), moved AS (
    UPDATE partitions p SET high_watermark = s.next, updated_at = :now
    FROM (SELECT * FROM partition LIMIT CAST(:all AS bigint)) s
    WHERE p.topic = s.topic AND p.partition_id = s.partition_id AND NOT EXISTS (SELECT FROM refused)
), added AS (
    INSERT INTO segments (topic, partition_id, base_offset, end_offset, record_count, size_bytes,
                          s3_bucket, s3_key, byte_offset, min_timestamp, max_timestamp, block_index, created_at)
    SELECT g.*, :now FROM given g WHERE NOT EXISTS (SELECT FROM refused)
), objects_counted AS (
    INSERT INTO segment_objects AS u (s3_bucket, s3_key, live_segments, size_bytes, created_at)
    SELECT o.s3_bucket, o.s3_key, o.live_segments, o.size_bytes, :now
    FROM object o WHERE NOT EXISTS (SELECT FROM refused)
    ON CONFLICT (s3_bucket, s3_key) DO UPDATE
    SET live_segments = u.live_segments + excluded.live_segments, size_bytes = u.size_bytes + excluded.size_bytes
), producers_continued AS (
    UPDATE producer_sequences w
    SET epoch = p.epoch, last_sequence = p.last_sequence, last_base_offset = p.base_offset,
        last_count = p.record_count, updated_at = :now
    FROM (SELECT * FROM producer WHERE known_epoch IS NOT NULL LIMIT CAST(:all AS bigint)) p
    WHERE w.topic = p.topic AND w.partition_id = p.partition_id AND w.producer_id = p.producer_id
      AND NOT EXISTS (SELECT FROM refused)
), producers_added AS (
    INSERT INTO producer_sequences (topic, partition_id, producer_id, epoch, last_sequence, last_base_offset,
                                    last_count, updated_at)
    SELECT topic, partition_id, producer_id, epoch, last_sequence, base_offset, record_count, :now
    FROM producer WHERE known_epoch IS NULL AND NOT EXISTS (SELECT FROM refused)
), completed AS (
    DELETE FROM upload_intents i USING (SELECT path FROM object LIMIT CAST(:all AS bigint)) o
    WHERE i.path = o.path AND NOT EXISTS (SELECT FROM refused)
)
SELECT topic, partition_id, why FROM refused
"""
)

CLAIMED_PATHS = text("SELECT path FROM upload_intents WHERE path = ANY(CAST(:paths AS text[]))")

RECORD_INTENTS = PositionalStatement.of(
    """
INSERT INTO upload_intents (path, purpose, owner, created_at)
SELECT g.path, :purpose, :owner, :now FROM unnest(CAST(:path AS text[])) AS g (path)
ON CONFLICT (path) DO UPDATE
SET purpose = excluded.purpose, owner = excluded.owner, created_at = excluded.created_at
"""
)


# Two transactions that delete the last two segments of an object would each see the other's segment. So the object's
# row is locked, and its counter decides.
DELETE_SEGMENTS = text(
    """
WITH gone AS (
    DELETE FROM segments WHERE id IN (
        SELECT id FROM segments
        WHERE topic = :topic AND partition_id = :partition_id AND base_offset < :offset AND end_offset < :offset
        ORDER BY base_offset LIMIT :most
    )
    RETURNING s3_bucket, s3_key
), counted AS MATERIALIZED (
    SELECT s3_bucket, s3_key, count(*) AS segments FROM gone GROUP BY s3_bucket, s3_key
), held AS MATERIALIZED (
    SELECT u.s3_bucket, u.s3_key, u.live_segments - c.segments AS live_segments
    FROM segment_objects u JOIN counted c ON c.s3_bucket = u.s3_bucket AND c.s3_key = u.s3_key
    ORDER BY u.s3_bucket, u.s3_key
    FOR UPDATE OF u
), lowered AS (
    UPDATE segment_objects u SET live_segments = h.live_segments
    FROM held h WHERE u.s3_bucket = h.s3_bucket AND u.s3_key = h.s3_key AND h.live_segments > 0
), emptied AS (
    DELETE FROM segment_objects u USING held h
    WHERE u.s3_bucket = h.s3_bucket AND u.s3_key = h.s3_key AND h.live_segments <= 0
    RETURNING CASE WHEN u.s3_bucket = :local THEN 'file:///' ELSE 's3://' || u.s3_bucket || '/' END || u.s3_key AS path
), recorded AS (
    INSERT INTO upload_intents AS i (path, purpose, owner, created_at)
    SELECT path, :purpose, :purpose, :now FROM emptied
    ON CONFLICT (path) DO UPDATE
    SET purpose = excluded.purpose, owner = excluded.owner, created_at = excluded.created_at
)
SELECT count(*) FROM gone
"""
).bindparams(
    *(bindparam(name, type_=BigInteger) for name in ("offset", "most", "now")),
    *(bindparam(name, type_=Text) for name in ("topic", "local", "purpose")),
    bindparam("partition_id", type_=Integer),
)

# One round trip: it runs several times per second on the event loop that delivers events.
WRITE_LEDGER = text(
    """
WITH held AS MATERIALIZED (
    SELECT epoch FROM daemon_lease WHERE name = :name AND holder = :holder AND epoch = :epoch FOR SHARE
), written AS (
    INSERT INTO ledger
        (component, position, refresh_visibility, tables, state, refresh_owed, reason, updated_at, "group")
    SELECT entry.* FROM held, unnest(
        CAST(:component AS text[]), CAST(:position AS bigint[]), CAST(:refresh_visibility AS json[]),
        CAST(:tables AS json[]), CAST(:state AS text[]), CAST(:refresh_owed AS bool[]), CAST(:reason AS text[]),
        CAST(:updated_at AS bigint[]), CAST(:group AS text[])
    ) AS entry
    ON CONFLICT ("group", component) DO UPDATE
    SET position = excluded.position, refresh_visibility = excluded.refresh_visibility, tables = excluded.tables,
        state = excluded.state, refresh_owed = excluded.refresh_owed, reason = excluded.reason,
        updated_at = excluded.updated_at
)
SELECT count(*) FROM held
"""
).bindparams(
    *(bindparam(name, type_=Text) for name in ("name", "holder")),
    bindparam("epoch", type_=BigInteger),
)

# Statistics: the difference is added to the partition's row. A partition without a row gets one, unless another
# transaction has inserted it during the wait for the table's lock: then the difference, which can only be an addition,
# is added to that row.
# A new file whose path this statement's snapshot sees among the live files either still exists (AlreadyExists), or was
# removed during the wait for the lock, and then its row in files_awaiting_deletion is not visible: the statement
# returns `raced`, writes nothing, and the caller repeats the change in a transaction of several statements.
#
# A prepared plan may have been made when the table was empty and all plans cost the same. So only one is possible:
# LATERAL goes from the given rows to the files; `+ 0` and ORDER BY exclude every index but those of ids and paths.
_CHANGE_FILES = """
WITH held AS MATERIALIZED (
    SELECT id FROM tables WHERE id = :table_id FOR NO KEY UPDATE
), old AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:old_id AS bigint[]), CAST(:old_name AS text[]), CAST(:old_path AS text[]), CAST(:old_size AS bigint[]),
        CAST(:old_type AS text[]), CAST(:old_partition AS text[]), CAST(:old_rows AS bigint[]),
        CAST(:old_checksum AS text[]), CAST(:old_compressed AS bool[]), CAST(:old_version AS int[]),
        CAST(:old_stats AS text[]), CAST(:old_operation AS text[]), CAST(:old_operation_id AS text[]),
        CAST(:old_created AS bigint[]), CAST(:old_modified AS bigint[]), CAST(:old_json AS json[])
    ) AS o (id, file_name, file_path, file_size, file_type, partition_path, row_count, checksum, is_compressed,
            schema_version, column_stats, operation, operation_id, created_at, modified_at, file)
), current AS MATERIALIZED (
    SELECT f.* FROM held, old o, LATERAL (
        SELECT f.* FROM table_files f WHERE f.id = o.id AND f.table_id + 0 = held.id FOR UPDATE
    ) f
), refused AS MATERIALIZED (
    SELECT o.file_path FROM old o LEFT JOIN current c ON c.id = o.id
    WHERE (c.file_name, c.file_path, c.file_size, c.file_type, c.partition_path, c.row_count, c.checksum,
           c.is_compressed, c.schema_version, CAST(c.column_stats AS text), c.operation, c.operation_id,
           c.created_at, c.modified_at)
          IS DISTINCT FROM
          (o.file_name, o.file_path, o.file_size, o.file_type, o.partition_path, o.row_count, o.checksum,
           o.is_compressed, o.schema_version, o.column_stats, o.operation, o.operation_id,
           o.created_at, o.modified_at)
), given AS MATERIALIZED (
    SELECT * FROM unnest(
        CAST(:file_name AS text[]), CAST(:file_path AS text[]), CAST(:file_size AS bigint[]),
        CAST(:file_type AS text[]), CAST(:partition_path AS text[]), CAST(:row_count AS bigint[]),
        CAST(:checksum AS text[]), CAST(:is_compressed AS bool[]), CAST(:schema_version AS int[]),
        CAST(:column_stats AS json[])
    ) AS g (file_name, file_path, file_size, file_type, partition_path, row_count, checksum, is_compressed,
            schema_version, column_stats)
), raced AS MATERIALIZED (
    SELECT f.id FROM given g, LATERAL (
        SELECT f.id, f.file_path FROM table_files f
        WHERE f.table_id = :table_id AND f.file_path >= g.file_path ORDER BY f.file_path LIMIT 1
    ) f WHERE f.file_path = g.file_path LIMIT 1
), own AS MATERIALIZED (
    SELECT i.path FROM given g JOIN upload_intents i ON i.path = g.file_path
    WHERE i.owner = :intents_of FOR UPDATE OF i
), lost AS MATERIALIZED (
    SELECT file_path FROM given
    WHERE CAST(:intents_of AS text) IS NOT NULL AND NOT EXISTS (SELECT FROM own WHERE own.path = file_path)
), %(moved)s, accepted AS MATERIALIZED (
    SELECT id FROM held
    WHERE NOT EXISTS (SELECT FROM refused) AND NOT EXISTS (SELECT FROM raced) AND NOT EXISTS (SELECT FROM lost)
      AND NOT EXISTS (SELECT FROM moved)
), removed AS (
    DELETE FROM table_files f USING current c WHERE f.id = c.id AND EXISTS (SELECT FROM accepted)
), added AS (
    INSERT INTO table_files (table_id, file_name, file_path, file_size, file_type, partition_path, row_count, checksum,
                             is_compressed, schema_version, column_stats, operation, operation_id,
                             created_at, modified_at)
    SELECT accepted.id, g.*, :operation, :operation_id, :now, :now
    FROM accepted, given g
    RETURNING *
), difference AS MATERIALIZED (
    SELECT partition_path, row_count, file_count, total_size FROM accepted, unnest(
        CAST(:stat_partition AS text[]), CAST(:stat_rows AS bigint[]),
        CAST(:stat_files AS bigint[]), CAST(:stat_size AS bigint[])
    ) AS d (partition_path, row_count, file_count, total_size)
), counted AS (
    UPDATE table_stats s
    SET row_count = s.row_count + d.row_count, file_count = s.file_count + d.file_count,
        total_size = s.total_size + d.total_size, last_modified = :now, updated_at = :now
    FROM difference d
    WHERE s.table_id = :table_id AND s.partition_path = d.partition_path
    RETURNING s.partition_path
), stats_added AS (
    INSERT INTO table_stats (table_id, partition_path, row_count, file_count, total_size,
                             last_modified, created_at, updated_at)
    SELECT :table_id, d.partition_path, d.row_count, d.file_count, d.total_size, :now, :now, :now
    FROM difference d WHERE NOT EXISTS (SELECT FROM counted c WHERE c.partition_path = d.partition_path)
    ON CONFLICT (table_id, partition_path) DO UPDATE
    SET row_count = table_stats.row_count + excluded.row_count,
        file_count = table_stats.file_count + excluded.file_count,
        total_size = table_stats.total_size + excluded.total_size,
        last_modified = excluded.last_modified, updated_at = excluded.updated_at
), table_counted AS (
    UPDATE tables t
    SET row_count = t.row_count + d.row_count, file_count = t.file_count + d.file_count,
        total_size = t.total_size + d.total_size, last_modified = :now, updated_at = :now
    FROM (SELECT CAST(sum(row_count) AS bigint) AS row_count, CAST(sum(file_count) AS bigint) AS file_count,
                 CAST(sum(total_size) AS bigint) AS total_size FROM difference) d
    WHERE t.id = :table_id AND d.row_count IS NOT NULL
), listed AS (
    INSERT INTO files_awaiting_deletion (table_id, file_path, file_size, reason, file, removed_at)
    SELECT :table_id, o.file_path, o.file_size, :reason, o.file, :now
    FROM old o WHERE EXISTS (SELECT FROM accepted)
), restored AS (
    DELETE FROM files_awaiting_deletion a USING given g
    WHERE a.table_id = :table_id AND a.file_path = g.file_path AND EXISTS (SELECT FROM accepted)
), completed AS (
    DELETE FROM upload_intents i USING given g
    WHERE i.path = g.file_path AND :operation <> 'external' AND EXISTS (SELECT FROM accepted)
), compacted AS (
    UPDATE compactions c
    SET status = 'done', reason = NULL, ended_at = :now, updated_at = :now,
        output_files = g.files, output_bytes = g.bytes, row_count = g.rows
    FROM accepted, (SELECT count(*) AS files, CAST(coalesce(sum(file_size), 0) AS bigint) AS bytes,
                         CAST(coalesce(sum(row_count), 0) AS bigint) AS rows FROM given) g
    WHERE :operation = 'compaction' AND c.operation_id = :operation_id AND c.table_id = accepted.id
      AND c.status IN ('running', 'aborted')
)%(advanced)s
SELECT (SELECT count(*) FROM held) AS held, (SELECT array_agg(file_path) FROM refused) AS refused,
       EXISTS (SELECT FROM raced) AS raced, (SELECT array_agg(file_path) FROM lost) AS lost,
       (SELECT array_agg(ordinal ORDER BY ordinal) FROM moved) AS moved,
       (SELECT array_agg(found ORDER BY ordinal) FROM moved) AS found, added.*
FROM (SELECT) AS always LEFT JOIN added ON true
"""

# A group's first offset in a partition has no row to lock. If another transaction inserts it first, this statement's
# insertion fails, and the whole statement with it.
_ADVANCES = """unnest(
        CAST(:group_id AS text[]), CAST(:topic AS text[]), CAST(:partition_id AS int[]),
        CAST(:expected_offset AS bigint[]), CAST(:next_offset AS bigint[]), CAST(:offset_metadata AS text[])
    ) WITH ORDINALITY AS a (group_id, topic, partition_id, expected, next, metadata, ordinal)"""
_COMPARED_OFFSETS = f"""committed AS MATERIALIZED (
    SELECT a.ordinal, o.committed_offset FROM {_ADVANCES}, LATERAL (
        SELECT o.committed_offset FROM consumer_offsets o
        WHERE o.group_id = a.group_id AND o.topic = a.topic AND o.partition_id = a.partition_id FOR UPDATE
    ) o
), moved (ordinal, found) AS MATERIALIZED (
    SELECT a.ordinal, s.committed_offset FROM {_ADVANCES} LEFT JOIN committed s ON s.ordinal = a.ordinal
    WHERE s.committed_offset IS DISTINCT FROM a.expected
)"""
_NO_OFFSETS = "moved (ordinal, found) AS MATERIALIZED (SELECT CAST(0 AS bigint), CAST(0 AS bigint) WHERE false)"
_MOVED_OFFSETS = f""", advanced AS (
    UPDATE consumer_offsets o SET committed_offset = a.next, metadata = a.metadata, committed_at = :now
    FROM accepted, {_ADVANCES}
    WHERE o.group_id = a.group_id AND o.topic = a.topic AND o.partition_id = a.partition_id
), offsets_added AS (
    INSERT INTO consumer_offsets (group_id, topic, partition_id, committed_offset, metadata, committed_at)
    SELECT a.group_id, a.topic, a.partition_id, a.next, a.metadata, :now
    FROM accepted, {_ADVANCES} WHERE a.expected IS NULL
)"""


def _change_statement(moved: str, advanced: str) -> TextualSelect:
    return (
        text(_CHANGE_FILES % {"moved": moved, "advanced": advanced})
        .bindparams(
            *(bindparam(name, type_=BigInteger) for name in ("table_id", "now")),
            *(bindparam(name, type_=Text) for name in ("operation", "operation_id", "reason", "intents_of")),
        )
        .columns(
            column("held", Integer),
            column("refused", ARRAY(Text)),
            column("raced", Boolean),
            column("lost", ARRAY(Text)),
            column("moved", ARRAY(BigInteger)),
            column("found", ARRAY(BigInteger)),
            *table_files.c,
        )
    )


CHANGE_FILES = _change_statement(_NO_OFFSETS, "")
CHANGE_FILES_AND_OFFSETS = _change_statement(_COMPARED_OFFSETS, _MOVED_OFFSETS)
