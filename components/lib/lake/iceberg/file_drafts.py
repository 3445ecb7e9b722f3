"""Files of another engine's manifests in the form in which the registry stores them, with their statistics."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

from pyiceberg.manifest import DataFile

from registry.inputs import FileDraft
from registry.json_text import JsonText, to_json_text
from registry.models import ColumnStats


def file_draft(file: DataFile, partition_path: str, schema_version: int) -> FileDraft:
    return FileDraft(
        file_path=file.file_path,
        file_size=file.file_size_in_bytes,
        file_type=file.file_format.value.lower(),
        row_count=file.record_count,
        schema_version=schema_version,
        partition_path=partition_path,
        column_stats=_column_statistics(file),
    )


def _column_statistics(file: DataFile) -> JsonText | None:
    """Returns None if the manifest counts no values: counts are what a reader of statistics needs first."""
    counts = file.value_counts or {}
    if not counts:
        return None
    nulls, nans, sizes = file.null_value_counts or {}, file.nan_value_counts or {}, file.column_sizes or {}
    lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
    return to_json_text(
        {
            str(key): ColumnStats(
                value_count=count,
                null_count=nulls.get(key, 0),
                nan_count=nans.get(key),
                size_bytes=sizes.get(key),
                lower=_text(lower, key),
                upper=_text(upper, key),
            )
            for key, count in counts.items()
        }
    )


def _text(bounds: Mapping[int, bytes], key: int) -> str | None:
    return b64encode(bounds[key]).decode() if key in bounds else None
