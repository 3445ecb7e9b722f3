"""Inserts: rows are written to files, and the files are registered with their table.

In: Arrow tables, record batches, rows. Out: Parquet or JSON files under the table's location, registered.
Guaranteed: all rows of an insert or none; a failed insert leaves no file and no row.
"""

from components.lib.storage_manager.errors import InsertError, NoSuchTable, RowsRefused
from components.lib.storage_manager.insert_result import InsertResult
from components.lib.storage_manager.insert_stream import InsertStream
from components.lib.storage_manager.manager import StorageManager
from components.lib.storage_manager.settings import StorageSettings

__all__ = [
    "InsertError",
    "InsertStream",
    "InsertResult",
    "NoSuchTable",
    "RowsRefused",
    "StorageManager",
    "StorageSettings",
]
