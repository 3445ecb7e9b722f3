from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from components.lib.spark.worker_daemon import UnchangingArchive, tune_worker


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """An archive of Spark's and a user's; a module of each is loaded."""
    paths = []
    for name in ("pyspark.zip", "theirs.zip"):
        path = tmp_path / name
        with ZipFile(path, "w") as archive:
            for module in ("first", "second"):
                archive.writestr(f"{path.stem}_{module}.py", f"name = {module!r}")
        monkeypatch.syspath_prepend(str(path))
        importlib.import_module(f"{path.stem}_first")
        paths.append(str(path))
    before = dict(sys.path_importer_cache)
    yield paths[0], paths[1]
    sys.path_importer_cache.clear()
    sys.path_importer_cache.update(before)
    gc.unfreeze()


def test_sparks_own_archives_are_not_read_again(archives: tuple[str, str]) -> None:
    sparks, theirs = archives

    tune_worker()
    importlib.invalidate_caches()

    assert isinstance(sys.path_importer_cache[sparks], UnchangingArchive)
    assert isinstance(sys.path_importer_cache[theirs], zipimporter)
    assert importlib.import_module("pyspark_second").name == "second"
    assert importlib.import_module("theirs_second").name == "second"
    assert gc.get_freeze_count() > 0
