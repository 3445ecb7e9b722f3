"""Writing: appends to many partitions are gathered, uploaded as one object and registered in one transaction.

In: appends. Out: objects, rows of `segments`, offsets. Guaranteed: a successful append is durable and appears once and
in order in its partition; one that failed with AppendFailed has left nothing.
"""

from components.lib.streams.writer.accumulator import Appended, AppendId
from components.lib.streams.writer.producer import Producer
from components.lib.streams.writer.settings import WriterSettings, WriterStatistics
from components.lib.streams.writer.writer import SegmentWriter

__all__ = ["AppendId", "Appended", "Producer", "SegmentWriter", "WriterSettings", "WriterStatistics"]
