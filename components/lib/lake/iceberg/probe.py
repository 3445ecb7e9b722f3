"""Whether the catalog answers: the health check of components that work with it.

It has a thread and a connection of its own. A component's worker may be busy for minutes, with a large refresh or many
requests that came due together; that does not make it unhealthy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.catalog import Catalog

from components.lib.lake.iceberg.errors import with_mapped_errors


class CatalogProbe:
    """Opened by the first question. One question at a time: the next one waits for a question that hangs."""

    def __init__(self, open_catalog: Callable[[], Catalog]) -> None:
        self._open = open_catalog
        self._catalog: Catalog | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def ask(self) -> None:
        """CatalogUnavailable if it does not answer."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="catalog health")
        await asyncio.get_running_loop().run_in_executor(self._thread, with_mapped_errors, self._ask)

    def close(self) -> None:
        """Waits for nothing. Another question opens it again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.submit(self._close)
            thread.shutdown(wait=False)

    def _ask(self) -> None:
        if self._catalog is None:
            self._catalog = self._open()
        self._catalog.list_namespaces()

    def _close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()
