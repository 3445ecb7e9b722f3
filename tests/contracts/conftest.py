from __future__ import annotations

from collections.abc import Awaitable, Iterator

import pytest

from tests.contracts.bad_input import Refused, complaint


@pytest.fixture
def refused() -> Iterator[Refused]:
    """Collects, so that one run shows everything that a verb wrongly accepts."""
    complaints: list[str] = []

    async def expect(call: Awaitable[object], field: str, value: object) -> None:
        if found := await complaint(call, field, value):
            complaints.append(found)

    yield expect
    assert not complaints, "\n".join(complaints)
