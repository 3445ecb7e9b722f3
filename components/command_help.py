"""One line for each command of this distribution, apart from its module: `astha --help` imports none of them.

`astha.cli.plugins` looks for `SHORT_HELP` here. A test compares the lines with the commands' own.
"""

from __future__ import annotations

from collections.abc import Mapping

SHORT_HELP: Mapping[str, str] = {
    "catalog": "Serve the tables as an Iceberg REST catalog.",
    "compaction": "Show, explain, run and cancel compactions.",
    "consume": "Print the records of a topic.",
    "groups": "List, inspect, reset and delete consumer groups.",
    "iceberg": "Show Iceberg tables and resolve other engines' commits.",
    "insert": "Insert files of rows into a table.",
    "produce": "Append lines to a topic.",
    "snapshot": "Create, list, expire and roll back snapshots of tables.",
    "tables": "Create, list, describe, alter and drop tables of the lake.",
    "topics": "Create, list, describe, alter, trim and delete topics.",
    "verify": "Compare registry, Iceberg and storage.",
}
