"""What `make bundle` makes: an installer and everything that it reads. `make systemd` also tests its requirements."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from deploy import bundle
from deploy.systemd import installer


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def pinned(target: Path, extras: Sequence[str]) -> Path:
        target.write_text(" ".join(extras))
        return target

    monkeypatch.setattr(bundle, "pin_requirements", pinned)
    return bundle.make_bundle(tmp_path / "dist", ["kafka", "lake"])


def test_a_bundle_can_be_installed_where_it_is_unpacked(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "target", filter="data")
    (directory,) = (tmp_path / "target").iterdir()
    assert directory.name == archive.name.removesuffix(".tar.gz")
    (wheel,) = directory.glob("*.whl")
    assert f"astha-{installer.version_of(wheel)}" == directory.name
    assert (directory / "requirements.txt").read_text() == "kafka lake"
    source = Path(installer.__file__).parent
    wanted = {path.relative_to(source) for path in source.rglob("*") if "__pycache__" not in path.parts}
    assert {path.relative_to(directory / "systemd") for path in (directory / "systemd").rglob("*")} == wanted
    assert (directory / "systemd/installer.py").stat().st_mode & 0o111


def test_the_extras_of_the_bundle_exist() -> None:
    """An extra that does not exist is only a warning of uv's."""
    makefile = (bundle.ROOT / "Makefile").read_text()
    (extras,) = (line.split()[2:] for line in makefile.splitlines() if line.startswith("EXTRAS ="))
    project = (bundle.ROOT / "pyproject.toml").read_text()
    assert extras
    assert [extra for extra in extras if f"\n{extra} = [" not in project] == []
    assert "-m deploy.bundle $(EXTRAS)" in makefile
