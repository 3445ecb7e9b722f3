"""The health check of the catalog, for components that work with it.

It has its own thread and connection: a component's worker may be busy for minutes with a large refresh or many
requests, which does not make it unhealthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.catalog import Catalog

from components.lib.lake.iceberg.errors import with_mapped_errors


class CatalogProbe:
    """Connects at the first check. Checks run one at a time: the next one waits for one that hangs."""

    def __init__(self, open_catalog: Callable[[], Catalog]) -> None:
        self._open = open_catalog
        self._catalog: Catalog | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def check(self) -> None:
        """Raises `CatalogUnavailable` if the catalog does not respond."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalog health")
        await asyncio.get_running_loop().run_in_executor(self._thread, with_mapped_errors, self._check)

    def close(self) -> None:
        """Does not wait. A later check connects again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._close)
            thread.shutdown(wait=False)

    def _check(self) -> None:
        if self._catalog is None:
            self._catalog = self._open()
        self._catalog.list_namespaces()

    def _close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()
