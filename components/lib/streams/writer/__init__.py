"""Records become segments: gathered from all partitions, uploaded as one object, registered in one transaction.

In: appends. Out: objects, rows of `segments`, offsets.
Guaranteed: an append that was answered is durable, and stands once and in order in its partition; one that failed with
AppendFailed has left nothing.
"""

from components.lib.streams.writer.accumulator import Appended, AppendId
from components.lib.streams.writer.producer import Producer
from components.lib.streams.writer.settings import WriterSettings
from components.lib.streams.writer.statistics import WriterStatistics
from components.lib.streams.writer.writer import SegmentWriter

__all__ = ["AppendId", "Appended", "Producer", "SegmentWriter", "WriterSettings", "WriterStatistics"]
