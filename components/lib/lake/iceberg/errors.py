"""Errors of Iceberg tables, and what to do about each.

TableProblem          concerns one table, the others go on; the operator has to act
|-- ForeignTable      the catalog's table of that name is not ours         -> rename one of them
|-- ForeignCommit     another engine has committed                         -> `astha iceberg adopt` or `revert`
|-- Unsupported       delete files, format version 3, not Parquet          -> see docs/parts/lake.md
|-- BadFile           the statistics of a file cannot be read              -> remove it from the registry
`-- BrokenTable       the catalog points to metadata that is missing       -> restore it, or drop the table there
CatalogUnavailable    the catalog or the storage does not answer           -> retry
`-- TableUnavailable  one table's storage fails, the catalog answers       -> retry that table, the others go on
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyiceberg.exceptions import BadRequestError, CommitStateUnknownException, RESTError
from sqlalchemy.exc import SQLAlchemyError

from astha.errors import AsthaError

T = TypeVar("T")


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


class CatalogUnavailable(AsthaError):
    pass


class TableUnavailable(CatalogUnavailable):
    pass


def with_mapped_errors(call: Callable[[], T]) -> T:
    """Raises `CatalogUnavailable` for errors that a retry may cure. A missing file or a refused request is raised as
    it is.
    """
    try:
        return call()
    except (FileNotFoundError, BadRequestError):
        raise
    except CommitStateUnknownException as error:
        raise CatalogUnavailable(f"the catalog does not say whether it has committed: {error}") from error
    except (SQLAlchemyError, RESTError, OSError) as error:
        raise CatalogUnavailable(f"the catalog or the storage does not answer: {error}") from error
