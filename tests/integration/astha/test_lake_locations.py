"""The registry keeps the lake's locations: commands in other directories write to the same places, or are refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from astha.cli import main
from astha.cli.exit_codes import Exit


def astha(*arguments: str, code: Exit = Exit.OK, input: str | None = None) -> Result:  # noqa: A002  (CliRunner's name)
    result = CliRunner().invoke(main, arguments, input=input)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return tmp_path / "first", tmp_path / "second"


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """Restored afterwards: `astha run` sets up logs on a stream that ends with the command."""
    root = logging.getLogger()
    handlers, level, before = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def registry(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASTHA_REGISTRY", url)


def test_every_command_writes_to_the_recorded_locations(
    directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = directories
    monkeypatch.chdir(first)
    astha("topics", "create", "orders")
    astha("registry", "migrate")
    assert "no locations yet" in astha("registry", "locations").output
    monkeypatch.setenv("ASTHA_LAKE__WAREHOUSE", "lake")
    astha("registry", "migrate")
    monkeypatch.delenv("ASTHA_LAKE__WAREHOUSE")
    monkeypatch.chdir(second)
    astha("produce", "orders", input="one\n")
    astha("tables", "create", "shop.orders", "--column", "id:long")
    (second / "rows.json").write_text('{"id": 1}\n')
    astha("insert", "shop.orders", "rows.json")
    assert [path.name for path in second.iterdir()] == ["rows.json"]
    assert list((first / "lake" / "streams").rglob("*.segments"))
    assert list((first / "lake" / "shop").rglob("*.parquet"))


def test_other_settings_are_refused_with_the_way_out(
    directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = directories
    astha("topics", "create", "orders")
    monkeypatch.setenv("ASTHA_LAKE__WAREHOUSE", "lake")
    monkeypatch.chdir(first)
    astha("produce", "orders", input="one\n")
    (first / "subscriptions.yaml").write_text("components: {}\n")
    monkeypatch.chdir(second)
    commands = [
        ("produce", "orders"),
        ("tables", "create", "shop.orders", "--column", "id:long"),
        ("registry", "migrate"),
        ("run", "--set", "server.port=0", "--subscriptions", str(first / "subscriptions.yaml")),
        ("catalog", "--set", "catalog.port=0"),
    ]
    for command in commands:
        refused = astha(*command, code=Exit.USAGE, input="two\n")
        assert (
            f"lake.warehouse is file://{second}/lake, but that of this registry is file://{first}/lake"
            in refused.stderr
        )
        assert f"`astha registry locations --warehouse file://{second}/lake`" in refused.stderr
    assert list(second.iterdir()) == []

    astha("registry", "locations", "--warehouse", "lake", "--yes")
    astha("tables", "create", "shop.orders", "--column", "id:long")
    shown = astha("registry", "locations", "--json").output
    assert f"file://{second}/lake" in shown
    assert f"file://{first}/lake/streams" in shown


def test_no_command_takes_the_warehouse_from_its_working_directory(
    url: str, directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = directories
    (first / "subscriptions.yaml").write_text("components: {}\n")
    monkeypatch.chdir(second)
    migrated = astha("registry", "migrate").output
    astha("topics", "create", "orders")
    commands = [
        ("tables", "create", "shop.orders", "--column", "id:long"),
        ("produce", "orders"),
        ("topics", "to-table", "orders", "shop.orders"),
        ("catalog", "--set", "catalog.port=0"),
        ("run", "--set", "server.port=0", "--subscriptions", str(first / "subscriptions.yaml")),
    ]
    if url.startswith("sqlite"):  # it is beside the file, wherever the command runs
        assert "warehouse" not in migrated
        for command in commands[:2]:
            astha(*command, input="one\n")
    else:
        assert "no warehouse yet: `astha registry locations --warehouse LOCATION`" in migrated
        for command in commands:
            refused = astha(*command, code=Exit.USAGE, input="one\n").stderr
            assert "has no warehouse yet" in refused, refused
            assert "set it once with `astha registry locations --warehouse LOCATION`" in refused
        assert "no locations yet" in astha("registry", "locations").output
        astha("tables", "create", "shop.own", "--column", "id:long", "--location", str(first / "own"))
        (first / "rows.json").write_text('{"id": 1}\n')
        astha("insert", "shop.own", str(first / "rows.json"))  # both know where: nothing is to be chosen
        astha("registry", "locations", "--warehouse", str(first / "lake"), "--yes")
        assert "warehouse" not in astha("registry", "migrate").output
        astha("produce", "orders", input="one\n")
        assert list((first / "lake" / "streams").rglob("*.segments"))
    assert list(second.iterdir()) == []


def test_a_new_registry_keeps_its_warehouse_beside_the_file(
    sqlite_url: str, directories: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTHA_REGISTRY", sqlite_url)
    monkeypatch.chdir(directories[0])
    astha("tables", "create", "shop.orders", "--column", "id:long")
    beside = Path(sqlite_url.removeprefix("sqlite:///")).parent / "warehouse"
    assert f"file://{beside}" in astha("registry", "locations").output
    assert list(directories[0].iterdir()) == []
