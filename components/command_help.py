"""One line for each command of this distribution, apart from its module: `astha --help` imports none of them.

`astha.cli.plugins` looks for `SHORT_HELP` here. A test compares the lines with the commands' own.
"""

from __future__ import annotations

from collections.abc import Mapping

SHORT_HELP: Mapping[str, str] = {
    "compaction": "Compaction: what is decided and why, by hand, what it has saved.",
    "consume": "Print the records of a topic.",
    "groups": "Consumer groups: list, lag, reset, delete.",
    "iceberg": "Iceberg tables: how they stand, and other engines' commits.",
    "insert": "Insert files of rows into a table.",
    "produce": "Append lines to a topic.",
    "snapshot": "Snapshots of tables: make, list, expire, clean up, roll back.",
    "tables": "Tables of the lake: create, list, describe, alter, drop.",
    "topics": "Topics: create, list, describe, alter, trim, delete, to-table.",
    "verify": "Whether registry, Iceberg and storage say the same.",
}
