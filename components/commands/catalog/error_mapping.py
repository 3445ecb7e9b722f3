"""The response of the protocol for each error of the registry, the lake and its storage."""

from __future__ import annotations

from components.commands.catalog.errors import BadRequest, CatalogError, CommitFailed, Unavailable
from components.lib.lake.engine_commits.errors import CommitConflict, EngineCommitError
from components.lib.lake.iceberg.errors import CatalogUnavailable, TableProblem
from components.lib.lake.storage.locations import BadLocation
from components.lib.lake.storage.objects import StorageError
from registry.errors import Conflict, Invalid, RegistryError


def catalog_error(error: Exception) -> CatalogError | None:
    """Returns None for an error that is not expected: its details are for the log only."""
    match error:
        case CatalogError():
            return error
        case CommitConflict() | Conflict():
            return CommitFailed(str(error))
        case EngineCommitError() | TableProblem() | BadLocation() | Invalid():
            return BadRequest(str(error))
        case RegistryError():
            return Unavailable("the registry does not respond at the moment: try again")
        case CatalogUnavailable() | StorageError():
            return Unavailable("the storage does not respond at the moment: try again")
        case TimeoutError():
            return Unavailable("the storage has not responded in time: try again")
        case _:
            return None
