from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.connect import open_store
from registry.engines import StoreSettings
from registry.migrate import migrate
from registry.private_files import create_file, make_directories, opener

NAMES = ("registry.db", "registry.db-wal", "registry.db-shm")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o077], autouse=True)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_a_new_file_has_the_given_mode_regardless_of_the_umask(tmp_path: Path) -> None:
    assert create_file(tmp_path / "private")
    assert create_file(tmp_path / "shared", 0o664)
    assert (mode(tmp_path / "private"), mode(tmp_path / "shared")) == (0o600, 0o664)
    assert not create_file(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o664
    with open(tmp_path / "opened", "wb", opener=opener(0o640)):
        assert mode(tmp_path / "opened") == 0o640


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"), open(tmp_path / "link", "wb", opener=opener()):
        pass
    assert not create_file(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_new_directories_have_the_given_mode_and_existing_ones_keep_theirs(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o2755)
    made = make_directories(tmp_path / "there" / "a" / "b", 0o750)
    assert made == [tmp_path / "there" / "a", tmp_path / "there" / "a" / "b"]
    assert [mode(path) & 0o777 for path in made] == [0o750, 0o750]
    assert mode(tmp_path / "there") == 0o2755
    assert {mode(path) & stat.S_ISGID for path in made} == {stat.S_ISGID}  # inherited
    assert make_directories(tmp_path / "there" / "a" / "b") == []
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directories(tmp_path / "file")


@pytest.mark.parametrize("chosen", [0o600, 0o660])
async def test_a_new_registry_and_its_wal_have_the_given_mode(tmp_path: Path, chosen: int) -> None:
    path, settings = tmp_path / "registry.db", StoreSettings(file_mode=chosen)
    migrate(f"sqlite:///{path}", settings)
    store = await open_store(f"sqlite:///{path}", settings=settings)
    await store.create_topic("orders", 1)
    modes = {name: mode(tmp_path / name) for name in NAMES}
    await store.close()
    assert set(modes.values()) == {chosen}


async def test_an_existing_registry_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    sqlite3.connect(path).close()
    path.touch()
    path.chmod(0o644)
    migrate(f"sqlite:///{path}")
    assert mode(path) == 0o644
