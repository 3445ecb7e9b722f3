"""Why a table can't be committed to, and what to do about it.

TableProblem          of one table alone: the others go on; a person has to look
|-- ForeignTable      the catalog's table of that name is not ours         -> rename one of them
|-- ForeignCommit     somebody else has committed                          -> `astha iceberg adopt` or `revert`
|-- Unsupported       delete files, format version 3, not Parquet          -> see docs/lake.md
|-- BadFile           a file of which no statistics are to be had          -> remove it from the registry
`-- BrokenTable       the catalog points to metadata that is not there     -> restore it, or drop the table there
CatalogTrouble        the catalog or the storage does not answer           -> try again
`-- StorageTrouble    one table's storage fails, and the catalog answers   -> try that table again, the others go on
"""

from __future__ import annotations

from astha.errors import AsthaError


class TableProblem(AsthaError):
    """The message names the thing, the value and the way out."""


class ForeignTable(TableProblem):
    pass


class ForeignCommit(TableProblem):
    pass


class Unsupported(TableProblem):
    pass


class BadFile(TableProblem):
    pass


class BrokenTable(TableProblem):
    pass


class CatalogTrouble(AsthaError):
    pass


class StorageTrouble(CatalogTrouble):
    pass
