"""Routes that commit: creating, registering and changing tables."""

from __future__ import annotations

from aiohttp import web

from components.commands.catalog.bodies import RegisterTable, decode
from components.commands.catalog.commit_preparation import TableChange
from components.commands.catalog.errors import BadRequest, Unsupported
from components.commands.catalog.names import TableIdentity, joined, namespace_of
from components.commands.catalog.routes.responses import NAMESPACE, TABLE, Route, idempotent_request, no_content
from components.commands.catalog.routes.tables import TableResponses, table_of
from components.commands.catalog.table_changes import Origin, TableChanges
from components.lib.lake.engine_commits.commit_request import CommitRequest, parse_transaction
from components.lib.lake.engine_commits.new_table import CreateRequest

_LONGEST_ENGINE = 200


class CommitRoutes:
    def __init__(self, changes: TableChanges, responses: TableResponses) -> None:
        self._changes = changes
        self._responses = responses

    def routes(self) -> list[Route]:
        return [
            Route("POST", f"{NAMESPACE}/tables", self._create),
            Route("POST", f"{NAMESPACE}/register", self._register),
            Route("POST", TABLE, self._commit),
            Route("POST", "/v1/transactions/commit", self._commit_transaction),
        ]

    async def _create(self, request: web.Request) -> web.Response:
        body = CreateRequest.parse(await request.read())
        table = TableIdentity.new(namespace_of(request.match_info["namespace"]), body.name)
        if body.stage_create:
            return self._responses.loaded(await self._changes.stage(table, body))
        return self._responses.loaded(await self._changes.create(table, body, await _origin(request)))

    async def _register(self, request: web.Request) -> web.Response:
        body = decode(await request.read(), RegisterTable)
        table = TableIdentity.new(namespace_of(request.match_info["namespace"]), body.name)
        if body.overwrite:
            raise Unsupported(f"{table} can't be overwritten by registering: drop it first")
        return self._responses.loaded(
            await self._changes.register(table, body.metadata_location, await _origin(request))
        )

    async def _commit(self, request: web.Request) -> web.Response:
        table, body = table_of(request), CommitRequest.parse(await request.read())
        named = body.identifier
        if named is not None and (joined(named.namespace), named.name) != table:
            raise BadRequest(f"the body names another table than the path: {'.'.join([*named.namespace, named.name])}")
        (done,) = await self._changes.commit([TableChange(table, body)], await _origin(request))
        return self._responses.loaded(done)

    async def _commit_transaction(self, request: web.Request) -> web.Response:
        changes = [
            TableChange(TableIdentity.existing(joined(change.identifier.namespace), change.identifier.name), change)
            for change in parse_transaction(await request.read())
            if change.identifier is not None
        ]
        if len({change.table for change in changes}) < len(changes):
            raise BadRequest("a transaction has at most one change per table")
        await self._changes.commit(changes, await _origin(request))
        return no_content()


async def _origin(request: web.Request) -> Origin:
    headers = request.headers
    client = headers.get("X-Client-Version") or headers.get("User-Agent") or ""
    engine = "".join(filter(str.isprintable, client))[:_LONGEST_ENGINE] or None
    return Origin(engine, await idempotent_request(request))
