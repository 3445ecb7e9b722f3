"""Data files: an engine for each format writes rows and says, without reading them again, what it has written."""

from components.lake.files.contract import FileEngine, WrittenFile
from components.lake.files.engines import engine_of

__all__ = ["FileEngine", "WrittenFile", "engine_of"]
