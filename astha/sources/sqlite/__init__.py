"""SQLite's change log, tailed.

One daemon tails one file: what it has acknowledged is deleted from the log, so a second tail of the same file would
find rows missing and say so (`Gap`).
"""

from astha.sources.sqlite.follower import SqliteFollower
from astha.sources.sqlite.source import SqliteSource, TailSettings

__all__ = ["SqliteFollower", "SqliteSource", "TailSettings"]
