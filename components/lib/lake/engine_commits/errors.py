"""Errors of commits by engines, and the response of the catalog for each.

EngineCommitError
|-- InvalidCommit     it can't be applied to any state of the table   -> 400: the client has to change it
|-- CommitConflict    the table has moved on                          -> 409: the client builds it again and retries
`-- UnreadableFiles   its manifests are missing or damaged            -> 400: nothing is committed
"""

from __future__ import annotations

from astha.errors import AsthaError


class EngineCommitError(AsthaError):
    """The message names the thing, the value and the way out; the client sees it."""


class InvalidCommit(EngineCommitError):
    pass


class CommitConflict(EngineCommitError):
    pass


class UnreadableFiles(EngineCommitError):
    pass
