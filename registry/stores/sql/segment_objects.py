"""Objects that contain segments: how many of them are live, and who may register more in them.

An object has a row as long as one of its segments is live. The transaction that deletes the last one turns the row into
an upload intent: from then on nothing can be registered in the object, and the cleaner deletes it once the intent is
stale, so that readers of the object can finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from sqlalchemy import delete, literal, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from registry.errors import Conflict
from registry.inputs import SegmentDraft
from registry.models import object_uri
from registry.schema import segment_objects, upload_intents
from registry.stores.sql.upload_intents import SqlUploadIntents

ObjectKey: TypeAlias = tuple[str, str]

PURPOSE = "segments"
"""Purpose and owner of the upload intent that an emptied object becomes."""

_bucket, _key, _live = segment_objects.c.s3_bucket, segment_objects.c.s3_key, segment_objects.c.live_segments


class SqlSegmentObjects(SqlUploadIntents):
    async def _require_own_objects(
        self, connection: AsyncConnection, keys: Iterable[ObjectKey], intents_of: str | None
    ) -> None:
        """Raises a Conflict that names the objects with neither an intent of this owner nor live segments."""
        if intents_of is None:
            return
        paths = {object_uri(*key): key for key in keys}
        given = self._bind_rows([upload_intents.c.path], [(path,) for path in sorted(paths)])
        own = (
            select(upload_intents.c.path)
            .join_from(upload_intents, given, upload_intents.c.path == given.c.path)
            .where(upload_intents.c.owner == intents_of)
            .with_for_update(of=upload_intents)
        )
        held = set((await connection.execute(own)).scalars())
        doubtful = [paths[path] for path in sorted(paths) if path not in held]
        if doubtful:
            live = await self._lock_objects(connection, doubtful)
            lost = [object_uri(*key) for key in doubtful if key not in live]
            if lost:
                raise lost_objects(intents_of, lost)

    async def _lock_objects(self, connection: AsyncConnection, keys: Iterable[ObjectKey]) -> dict[ObjectKey, int]:
        given = self._bind_rows([_bucket, _key], sorted(set(keys)))
        query = (
            select(_bucket, _key, _live)
            .join_from(segment_objects, given, (_bucket == given.c.s3_bucket) & (_key == given.c.s3_key))
            .order_by(_bucket, _key)
            .with_for_update(of=segment_objects)
        )
        return {(bucket, key): live for bucket, key, live in await connection.execute(query)}

    async def _add_to_objects(self, connection: AsyncConnection, drafts: Iterable[SegmentDraft], now: int) -> None:
        """Counts new segments and completes the objects' intents."""
        objects = count_by_object(drafts)
        columns = [_bucket, _key, _live, segment_objects.c.size_bytes]
        given = self._bind_rows(columns, [(*key, *numbers) for key, numbers in sorted(objects.items())])
        picked = select(*(given.c[column.name] for column in columns), literal(now)).where(
            literal(True)  # SQLite's grammar wants a WHERE between SELECT and ON CONFLICT
        )
        insert = self._insert(segment_objects).from_select([column.name for column in segment_objects.c], picked)
        await connection.execute(
            insert.on_conflict_do_update(
                index_elements=[_bucket, _key],
                set_={
                    "live_segments": _live + insert.excluded.live_segments,
                    "size_bytes": segment_objects.c.size_bytes + insert.excluded.size_bytes,
                },
            )
        )
        paths = self._bind_rows([upload_intents.c.path], [(object_uri(*key),) for key in objects])
        await connection.execute(delete(upload_intents).where(upload_intents.c.path.in_(select(paths.c.path))))

    async def _remove_from_objects(self, connection: AsyncConnection, gone: Mapping[ObjectKey, int]) -> None:
        """Counts deleted segments. An object without live segments becomes an upload intent."""
        if not gone:
            return
        live = await self._lock_objects(connection, gone)
        empty = [key for key in sorted(live) if live[key] <= gone[key]]
        lowered = [(*key, gone[key]) for key in sorted(live) if live[key] > gone[key]]
        if lowered:
            given = self._bind_rows([_bucket, _key, _live], lowered)
            await connection.execute(
                update(segment_objects)
                .where(_bucket == given.c.s3_bucket, _key == given.c.s3_key)
                .values(live_segments=_live - given.c.live_segments)
            )
        if empty:
            given = self._bind_rows([_bucket, _key], empty)
            is_given = (_bucket == given.c.s3_bucket) & (_key == given.c.s3_key)
            await connection.execute(delete(segment_objects).where(select(given.c.s3_key).where(is_given).exists()))
            paths = self._bind_rows([upload_intents.c.path], [(object_uri(*key),) for key in empty])
            await connection.execute(self._upsert_intents(select(paths.c.path), PURPOSE, PURPOSE))


def count_by_object(drafts: Iterable[SegmentDraft]) -> dict[ObjectKey, tuple[int, int]]:
    """Returns the segments and bytes that a call adds to each object."""
    objects: dict[ObjectKey, tuple[int, int]] = {}
    for draft in drafts:
        key = (draft.s3_bucket, draft.s3_key)
        count, size = objects.get(key, (0, 0))
        objects[key] = (count + 1, size + draft.size_bytes)
    return objects


def lost_objects(owner: str, paths: list[str]) -> Conflict:
    return Conflict(
        f"{owner!r} no longer owns the upload intent of {paths[0]}"
        + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")
        + ": a cleaner has taken it over and may have deleted the object; write it again under another name",
        paths,
    )
