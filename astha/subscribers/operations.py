"""Requests of an operator that only a running component can fulfil, such as a compaction at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from astha.errors import AsthaError


class OperationRefused(AsthaError):
    """Nothing was changed. The message is for the operator: the reason and the way out."""


@runtime_checkable
class OffersOperations(Protocol):
    """Optional: operations by name. The daemon calls them for `POST /tables/NAME/OPERATION` and the dashboard's pages,
    beside deliveries, and only while the component runs here.
    """

    @property
    def operations(self) -> frozenset[str]: ...

    async def operate(self, operation: str, table: str, arguments: Mapping[str, str]) -> object:
        """Returns a value for JSON. Raises OperationRefused or a registry's error; others are bugs. Long work
        continues in the background.
        """
        ...
