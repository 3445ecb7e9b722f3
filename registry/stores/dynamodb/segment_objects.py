"""Objects that contain segments: see `registry.stores.sql.segment_objects`, which states the rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from registry.inputs import SegmentDraft
from registry.models import SegmentObject, UploadIntent, object_uri
from registry.stores.dynamodb.transaction import Transaction
from registry.stores.dynamodb.upload_intents import DynamoUploadIntents
from registry.stores.sql.segment_objects import PURPOSE, ObjectKey, count_by_object, lost_objects


class DynamoSegmentObjects(DynamoUploadIntents):
    async def _require_own_objects(self, tx: Transaction, keys: Iterable[ObjectKey], owner: str | None) -> None:
        """Raises a Conflict that names the objects with neither an intent of this owner nor live segments."""
        if owner is None:
            return
        paths = {object_uri(*key): key for key in sorted(keys, key=lambda key: object_uri(*key))}
        intents = await tx.get_many(UploadIntent, [(path,) for path in paths])
        held = {row.path for row in intents.values() if row.owner == owner}
        live = await tx.get_many(SegmentObject, [key for path, key in paths.items() if path not in held])
        lost = [path for path, key in paths.items() if path not in held and key not in live]
        if lost:
            raise lost_objects(owner, lost)

    async def _add_to_objects(self, tx: Transaction, drafts: Iterable[SegmentDraft]) -> None:
        """Counts new segments and completes the objects' intents."""
        counts = count_by_object(drafts)
        found = await tx.get_many(SegmentObject, counts)
        for key, (count, size) in counts.items():
            old = found.get(key)
            if old is None:
                tx.insert(SegmentObject(*key, count, size, tx.now))
            else:
                tx.replace(old, live_segments=old.live_segments + count, size_bytes=old.size_bytes + size)
        await self._delete_intents(tx, [object_uri(*key) for key in counts])

    async def _remove_from_objects(self, tx: Transaction, gone: Mapping[ObjectKey, int]) -> None:
        """Counts deleted segments. An object without live segments becomes an upload intent."""
        found = await tx.get_many(SegmentObject, sorted(gone))
        empty = []
        for old in found.values():
            left = old.live_segments - gone[old.s3_bucket, old.s3_key]
            if left > 0:
                tx.replace(old, live_segments=left)
            else:
                tx.delete(old)
                empty.append(object_uri(old.s3_bucket, old.s3_key))
        if empty:
            await self._put_intents(tx, empty, PURPOSE, PURPOSE)
