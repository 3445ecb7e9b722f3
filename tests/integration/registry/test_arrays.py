"""The server reads array literals as the values they were made of."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from registry.embedded_postgres import EmbeddedPostgres
from registry.stores.postgres.arrays import array_literal

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["", "NULL", "null", '"', "\\", "{}", "{", ",", " ", "\n", '\\"', "'", "\\N"]
)


@pytest.fixture(scope="module")
def connection(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as opened:
        yield opened


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(_TEXT | st.none(), max_size=8))
def test_texts(connection: psycopg.Connection, values: list[str | None]) -> None:
    answer = connection.execute("SELECT CAST(%s AS text[])", [array_literal(values)]).fetchone()
    assert answer == (values,)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=8))
def test_numbers(connection: psycopg.Connection, values: list[int | None]) -> None:
    answer = connection.execute("SELECT CAST(%s AS bigint[])", [array_literal(values)]).fetchone()
    assert answer == (values,)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(values=st.lists(st.booleans() | st.none(), max_size=8))
def test_booleans(connection: psycopg.Connection, values: list[bool | None]) -> None:
    answer = connection.execute("SELECT CAST(%s AS bool[])", [array_literal(values)]).fetchone()
    assert answer == (values,)
