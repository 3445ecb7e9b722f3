"""Data files: an engine for each format writes rows and says, without reading them again, what it has written."""

from components.lib.lake.files.engines import engine_of
from components.lib.lake.files.writer_protocol import FileEngine, WrittenFile

__all__ = ["FileEngine", "WrittenFile", "engine_of"]
