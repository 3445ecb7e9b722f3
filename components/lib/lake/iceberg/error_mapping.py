"""What catalogs and storages raise when they do not answer, as one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyiceberg.exceptions import BadRequestError, CommitStateUnknownException, RESTError
from sqlalchemy.exc import SQLAlchemyError

from components.lib.lake.iceberg.errors import CatalogTrouble

T = TypeVar("T")


def explained(call: Callable[[], T]) -> T:
    """CatalogTrouble for what passes. A missing file or a refused request does not, and is raised as it is."""
    try:
        return call()
    except (FileNotFoundError, BadRequestError):
        raise
    except CommitStateUnknownException as error:
        raise CatalogTrouble(f"the catalog does not say whether it has committed: {error}") from error
    except (SQLAlchemyError, RESTError, OSError) as error:
        raise CatalogTrouble(f"the catalog or the storage does not answer: {error}") from error
