"""The changefeed of a CockroachDB registry. See docs/decisions/0037-cockroachdb-changefeed.md."""

from astha.sources.cockroachdb.live_source import CockroachLiveSource
from astha.sources.cockroachdb.source import CockroachSource

__all__ = ["CockroachLiveSource", "CockroachSource"]
