from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from components.lib.streams.reader import disk_cache
from components.lib.streams.reader.disk_cache import DiskBlockCache


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_are_private_to_the_user(tmp_path: Path) -> None:
    disk = DiskBlockCache(tmp_path / "cache", 1 << 20)
    disk.write("a block", b"data")
    await disk.close()
    paths = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    assert len([path for path in paths if path.is_file()]) == 2  # the block, and the lock
    assert {mode(path) for path in paths if path.is_dir()} == {0o700}
    assert {mode(path) for path in paths if path.is_file()} == {0o600}


async def test_a_lock_that_is_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Otherwise another user with write access to the parent directory could truncate our files."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "cache" / "00").mkdir(parents=True)
    (tmp_path / "cache" / "00" / "lock").symlink_to(victim)
    (tmp_path / "cache" / "01").symlink_to(tmp_path)
    disk = DiskBlockCache(tmp_path / "cache", 1 << 20)
    await disk.close()
    assert disk.directory.name == "02"
    assert victim.read_text() == "precious"
    assert not (tmp_path / "lock").exists()


async def test_directories_of_other_users_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await DiskBlockCache(tmp_path / "cache", 1 << 20).close()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    monkeypatch.setattr(disk_cache, "_MAX_CACHES", 1)
    with pytest.raises(OSError, match=r"1 of them another user's or symbolic links: choose another directory"):
        DiskBlockCache(tmp_path / "cache", 1 << 20)
