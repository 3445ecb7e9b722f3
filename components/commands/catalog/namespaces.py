"""Namespaces: a namespace exists if it, or one below it, has tables or properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from components.commands.catalog.errors import AlreadyExists, NamespaceNotEmpty, NoSuchNamespace, Unprocessable
from components.commands.catalog.idempotency import once
from components.commands.catalog.names import children, page
from components.lib.lake.iceberg.catalog import NAME
from registry import errors as registry_errors
from registry.contract import MetadataStore
from registry.models import CatalogRequest, NamespaceChange


class Namespaces:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def list_page(
        self, parent: str, after: str, size: int, paged: bool, visible: Callable[[str], bool] = lambda _: True
    ) -> tuple[Sequence[str], str | None]:
        """Returns a page of the namespaces one level below `parent`, and the last of them if more follow. Those that
        are not `visible` to the caller do not exist for it.
        """
        every = [name for name in await self._store.list_catalog_namespaces(NAME) if visible(name)]
        if parent:
            _require(parent, every)
        return page([name for name in children(every, parent) if name > after], size, paged)

    async def require(self, namespace: str) -> None:
        """Raises NoSuchNamespace if it does not exist."""
        _require(namespace, await self._store.list_catalog_namespaces(NAME))

    async def properties(self, namespace: str) -> dict[str, str]:
        await self.require(namespace)
        return await self._store.get_namespace_properties(NAME, namespace)

    async def create(self, namespace: str, properties: Mapping[str, str], request: CatalogRequest | None) -> None:
        async def create() -> None:
            try:
                await self._store.create_catalog_namespace(NAME, namespace, properties, request=request)
            except registry_errors.AlreadyCommitted:
                raise
            except registry_errors.AlreadyExists as error:
                raise AlreadyExists(f"Namespace already exists: {namespace}") from error

        await once(self._store, request, create, _nothing)

    async def update(
        self, namespace: str, updates: Mapping[str, str], removals: Sequence[str], request: CatalogRequest | None
    ) -> NamespaceChange:
        both = sorted(set(updates) & set(removals))
        if both:
            raise Unprocessable(f"properties to set and to remove at once: {', '.join(both)[:200]}")

        async def update() -> NamespaceChange:
            try:
                return await self._store.update_catalog_namespace(
                    NAME, namespace, set=updates, remove=removals, request=request
                )
            except registry_errors.NotFound as error:
                raise NoSuchNamespace(namespace) from error

        async def repeated() -> NamespaceChange:
            """What the first request removed is not known any more."""
            return NamespaceChange(sorted(updates), [], sorted(removals))

        return await once(self._store, request, update, repeated)

    async def drop(self, namespace: str, request: CatalogRequest | None) -> None:
        async def drop() -> None:
            try:
                await self._store.drop_catalog_namespace(NAME, namespace, request=request)
            except registry_errors.NotFound as error:
                raise NoSuchNamespace(namespace) from error
            except registry_errors.Conflict as error:
                raise NamespaceNotEmpty(f"Namespace {namespace} is not empty: {error}") from error

        await once(self._store, request, drop, _nothing)


async def _nothing() -> None:
    pass


def _require(namespace: str, every: Sequence[str]) -> None:
    if not any(name == namespace or name.startswith(f"{namespace}.") for name in every):
        raise NoSuchNamespace(namespace)
