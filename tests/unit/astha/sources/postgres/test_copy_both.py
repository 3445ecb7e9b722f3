"""Canaries: what `astha.sources.postgres.copy_both` relies on in psycopg. They fail when an upgrade changes it."""

from __future__ import annotations

import inspect

import psycopg
import pytest
from psycopg import generators, pq, waiting

LOOK = (
    "psycopg has changed: read its changelog for pq, generators and waiting, correct "
    "astha/sources/postgres/copy_both.py, run tests/integration/astha/test_postgres_source.py, then this list"
)


def test_version_is_one_that_was_checked() -> None:
    assert psycopg.__version__.startswith("3.3."), LOOK


@pytest.mark.parametrize("name", ["get_copy_data", "put_copy_data", "consume_input", "flush"])
def test_connections_have_the_copy_functions_of_libpq(name: str) -> None:
    assert callable(getattr(pq.PGconn, name, None)), LOOK


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("get_copy_data", ["self", "async_"]), ("put_copy_data", ["self", "buffer"]), ("flush", ["self"])],
)
def test_copy_functions_take_what_we_pass(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(pq.abc.PGconn, name)).parameters) == parameters, LOOK


def test_waiting_for_results_takes_a_generator_a_socket_and_a_timeout() -> None:
    assert {"gen", "fileno", "timeout"} <= inspect.signature(waiting.wait_async).parameters.keys(), LOOK
    assert callable(generators.fetch_many), LOOK


def test_errors_have_a_status_and_a_sqlstate() -> None:
    assert int(pq.ExecStatus.FATAL_ERROR) == 7, LOOK
    assert int(pq.DiagnosticField.SQLSTATE) == 67, LOOK  # "C"
