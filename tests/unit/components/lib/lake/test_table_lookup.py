from __future__ import annotations

import pytest

from components.lib.lake.table_lookup import TableName, wants_purge
from registry.errors import Invalid
from registry.json_text import EMPTY_LIST, EMPTY_OBJECT, JsonText
from registry.models import TableMetadata


@pytest.mark.parametrize(
    ("text", "database", "table", "identifier"),
    [
        ("orders", "default", "orders", ("default", "orders")),
        ("shop.orders", "shop", "orders", ("shop", "orders")),
        ("eu.shop.orders", "eu.shop", "orders", ("eu", "shop", "orders")),
    ],
)
def test_a_name_is_split_at_the_last_dot(text: str, database: str, table: str, identifier: tuple[str, ...]) -> None:
    name = TableName.parse(text)
    assert name == TableName(database, table)
    assert name.identifier == identifier
    assert TableName.parse(str(name)) == name


@pytest.mark.parametrize("text", ["", ".", "shop.", ".orders", "eu..orders", ".shop.orders"])
def test_a_name_with_an_empty_part_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"DATABASE\.TABLE"):
        TableName.parse(text)


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
def test_files_are_purged_only_if_the_table_says_so(properties: str, purge: bool) -> None:
    metadata = TableMetadata(
        1, 1, 1, EMPTY_OBJECT, "parquet", EMPTY_OBJECT, "parquet", "zstd", EMPTY_LIST, EMPTY_LIST, JsonText(properties),
        0, 0, 0,
    )  # fmt: skip
    assert wants_purge(metadata) is purge
