"""The segment format: docs/reference/segment-format.md.

An object contains segments of many partitions, one after the other, and a footer that lists them. A segment is a
sequence of blocks of one partition. A block has a header and columns: reading it is decompression, everything else are
views.
"""

from components.lib.streams.format.batch import RecordBatch
from components.lib.streams.format.block import (
    HEADER_SIZE,
    MAX_BODY_BYTES,
    BlockHeader,
    decode_block,
    encode_block,
    partition_tag,
    read_header,
)
from components.lib.streams.format.columns import NewRecord, RecordColumns
from components.lib.streams.format.footer import SegmentEntry, encode_footer, read_footer, scan
from components.lib.streams.format.index import BlockIndex, BlockLocation
from components.lib.streams.format.record import Header, Record
from components.lib.streams.format.segment import BLOCK_BYTES, EncodedSegment, encode_segment

__all__ = [
    # records
    "Header", "NewRecord", "Record", "RecordBatch", "RecordColumns",
    # blocks
    "BLOCK_BYTES", "HEADER_SIZE", "MAX_BODY_BYTES", "BlockHeader", "decode_block", "encode_block", "partition_tag",
    "read_header",
    # segments and objects
    "BlockIndex", "BlockLocation", "EncodedSegment", "SegmentEntry", "encode_footer", "encode_segment", "read_footer",
    "scan",
]  # fmt: skip
