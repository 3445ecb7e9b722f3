from __future__ import annotations

import pytest

from components.lib.lake.table_lookup import wants_purge
from registry.json_text import EMPTY_LIST, EMPTY_OBJECT, JsonText
from registry.models import TableMetadata


@pytest.mark.parametrize(
    ("properties", "purge"),
    [
        ("{}", False),
        ('{"drop.purge":"true"}', True),
        ('{"drop.purge":true}', True),
        ('{"drop.purge":"false"}', False),
        ('{"drop.purge":null}', False),
        ("[]", False),
    ],
)
def test_files_go_with_the_table_only_if_it_says_so(properties: str, purge: bool) -> None:
    metadata = TableMetadata(
        1, 1, 1, EMPTY_OBJECT, "parquet", EMPTY_OBJECT, "parquet", "zstd", EMPTY_LIST, EMPTY_LIST, JsonText(properties),
        0, 0, 0,
    )  # fmt: skip
    assert wants_purge(metadata) is purge
