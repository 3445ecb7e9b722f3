"""Access to the arrays inside an Arrow array of structs, lists or maps."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def inside(array: pa.Array, name: str) -> pa.Array:
    """Returns a struct's field (null where the struct is), a list's elements, or a map's ``key`` or else its values."""
    if pa.types.is_struct(array.type):
        return pc.struct_field(array, name)
    if not pa.types.is_map(array.type):
        return array.flatten()
    offsets = array.offsets  # of a slice, keys and items are still those of the whole array
    start, end = offsets[0].as_py(), offsets[-1].as_py()
    return (array.keys if name == "key" else array.items).slice(start, end - start)
