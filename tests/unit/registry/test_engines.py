from __future__ import annotations

import pytest

from registry.engines import display_url, parse_url
from registry.errors import Invalid


@pytest.mark.parametrize(
    ("text", "driver", "database"),
    [
        ("sqlite:///registry.db", "sqlite", "registry.db"),
        ("sqlite:////var/lib/registry.db", "sqlite", "/var/lib/registry.db"),
        ("sqlite+aiosqlite:///registry.db", "sqlite", "registry.db"),
        ("postgresql://user:secret@host:5433/db?sslmode=require", "postgresql", "db"),
        ("postgres://host/db", "postgresql", "db"),
        ("postgresql+asyncpg://host/db", "postgresql", "db"),
        ("cockroachdb://user:secret@host:26257/db?sslmode=verify-full", "cockroachdb", "db"),
        ("cockroachdb+psycopg://host/db?options=--cluster%3Done", "cockroachdb", "db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql", "db"),
        ("postgresql:///db?host=a:1&host=b:2", "postgresql", "db"),
        ("postgresql://host/db?options=-c%20work_mem%3D1MB&keepalives=0&connect_timeout=5", "postgresql", "db"),
    ],
)
def test_urls(text: str, driver: str, database: str) -> None:
    url = parse_url(text)
    assert (url.drivername, url.database) == (driver, database)


@pytest.mark.parametrize(
    "text",
    [
        "", "registry.db", "sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite:///file::memory:?uri=true",
        "mysql://user:secret@host/db", "postgres//user:secret@host/db", "postgresql://user:secret@host:port/db",
        "user:secret@host/db", "cockroachdb://user:secret@host",
    ],
)  # fmt: skip
def test_a_bad_url_is_refused_without_showing_its_password(text: str) -> None:
    with pytest.raises(Invalid, match="registry URL") as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("nosuch=1", "libpq has no parameter 'nosuch'"),
        ("sslmod=require", "libpq has no parameter 'sslmod': did you mean sslmode"),
        ("prepare_threshold=0", "libpq has no parameter 'prepare_threshold'"),
        ("sslmode=require&sslmode=disable", "sslmode is given more than once"),
        ("connect_timeout=soon", "connect_timeout must be an integer, not 'soon'"),
        ("host=a&port=x", "non-integer port"),
        ("host=a&host=b&port=1&port=2&port=3", "Can't mix 'multihost'"),
        ("replication=database", "Astha sets replication itself"),
    ],
)
def test_a_parameter_that_libpq_does_not_take_is_named(query: str, why: str) -> None:
    with pytest.raises(Invalid, match=why) as caught:
        parse_url(f"postgresql://user:hidden@/db?password=hidden&oauth_client_secret=hidden&{query}")
    assert "hidden" not in str(caught.value)


def test_sqlite_takes_no_parameters() -> None:
    with pytest.raises(Invalid, match="SQLite takes no parameters: remove timeout, mode"):
        parse_url("sqlite:///registry.db?timeout=abc&mode=ro")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:secret@host/db", "postgresql://host/db?user=u&password=secret",
        "postgresql://host/db?sslpassword=secret&sslmode=require", "postgresql://user:secret%40x@host/db",
    ],
)  # fmt: skip
def test_a_password_is_never_shown(text: str) -> None:
    assert "secret" not in display_url(parse_url(text))
    assert "host/db" in display_url(parse_url(text))
