"""The change log of a SQLite registry.

One daemon tails one file: it deletes acknowledged rows from the log, so a second tail of the same file would find rows
missing and yield a `Gap`.
"""

from astha.sources.sqlite.live_source import SqliteLiveSource
from astha.sources.sqlite.source import SqliteSource, TailSettings

__all__ = ["SqliteLiveSource", "SqliteSource", "TailSettings"]
