from components.api import AsyncLake as AsyncLake
from components.api import InsertSummary as InsertSummary
from components.api import Lake as Lake
from components.api import Scan as Scan
from components.api import connect as connect
from components.api import open_async
from components.lib.storage_manager import RowsRefused as RowsRefused
from components.lib.streams.format import NewRecord as NewRecord
from components.lib.streams.format import Record as Record

open = open_async  # noqa: A001
