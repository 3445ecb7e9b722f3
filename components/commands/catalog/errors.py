"""Errors of the REST catalog protocol: status, the type that clients turn into an exception, and a message.

Clients compare the beginning of some messages, such as "Table does not exist: ", so these are as in Iceberg's own.
"""

from __future__ import annotations

import msgspec


class CatalogError(Exception):
    """The response to a request that can't be fulfilled."""

    status = 500
    type = "InternalServerError"


class BadRequest(CatalogError):
    status, type = 400, "BadRequestException"


class NotAuthorized(CatalogError):
    status, type = 401, "NotAuthorizedException"


class Forbidden(CatalogError):
    status, type = 403, "ForbiddenException"


class NoSuchNamespace(CatalogError):
    status, type = 404, "NoSuchNamespaceException"

    def __init__(self, namespace: str) -> None:
        super().__init__(f"Namespace does not exist: {namespace}")


class NoSuchTable(CatalogError):
    status, type = 404, "NoSuchTableException"

    def __init__(self, table: str) -> None:
        super().__init__(f"Table does not exist: {table}")


class NoSuchFile(CatalogError):
    """A table's metadata file is gone."""

    status, type = 404, "NotFoundException"


class NoSuchEndpoint(CatalogError):
    """A path that the protocol does not have."""

    status, type = 404, "NotFoundException"


class Unsupported(CatalogError):
    """A request of the protocol that this catalog does not serve; `config` lists those that it serves."""

    status, type = 406, "UnsupportedOperationException"


class AlreadyExists(CatalogError):
    status, type = 409, "AlreadyExistsException"


class NamespaceNotEmpty(CatalogError):
    status, type = 409, "NamespaceNotEmptyException"


class CommitFailed(CatalogError):
    """Nothing was committed: the client loads the table again and repeats its commit."""

    status, type = 409, "CommitFailedException"


class Unprocessable(CatalogError):
    """A well-formed request that contradicts itself, or an idempotency key of another request."""

    status, type = 422, "UnprocessableEntityException"


class CommitStateUnknown(CatalogError):
    """The registry has not said whether the commit happened. The client must not delete its files."""

    status, type = 500, "CommitStateUnknownException"


class Unavailable(CatalogError):
    status, type = 503, "ServiceUnavailableException"


class _Model(msgspec.Struct, frozen=True):
    message: str
    type: str
    code: int


class _Body(msgspec.Struct, frozen=True):
    error: _Model


def error_body(status: int, kind: str, message: str) -> bytes:
    return msgspec.json.encode(_Body(_Model(message, kind, status)))
