"""Data files: one engine per format writes rows, and returns size, checksum and statistics without reading again."""

from components.lib.lake.files.engines import engine_of
from components.lib.lake.files.writer_protocol import FileEngine, WrittenFile

__all__ = ["FileEngine", "WrittenFile", "engine_of"]
