from __future__ import annotations

import pytest

from registry.engines import parse_url, shown
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
        ("postgresql:///db?host=/run/postgresql", "postgresql", "db"),
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
        "user:secret@host/db",
    ],
)  # fmt: skip
def test_what_is_no_registry_is_refused_without_its_password(text: str) -> None:
    with pytest.raises(Invalid, match="registry URL") as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:secret@host/db", "postgresql://host/db?user=u&password=secret",
        "postgresql://host/db?sslpassword=secret&sslmode=require", "postgresql://user:secret%40x@host/db",
    ],
)  # fmt: skip
def test_a_password_is_never_shown(text: str) -> None:
    assert "secret" not in shown(parse_url(text))
    assert "host/db" in shown(parse_url(text))
