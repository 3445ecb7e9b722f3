"""A FileIO that creates Iceberg's metadata files on local disk with the modes of the lake's settings.

On other storages it is PyIceberg's Arrow FileIO.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem, LocalFileSystem

from components.lib.lake.iceberg.pyiceberg_internals import CustomLocalFileIO
from registry.private_files import DIRECTORY, FILE, Modes, create_file, make_directories

IMPLEMENTATION = f"{__name__}.LakeFileIO"

_FILE_MODE = "astha.file-mode"
_DIRECTORY_MODE = "astha.directory-mode"


def mode_properties(modes: Modes) -> dict[str, str]:
    """Returns the catalog properties by which its tables are written through `LakeFileIO`."""
    return {
        "py-io-impl": IMPLEMENTATION,
        _FILE_MODE: f"{modes.file:04o}",
        _DIRECTORY_MODE: f"{modes.directory:04o}",
    }


class LakeFileIO(CustomLocalFileIO):
    def local_file_system(self) -> FileSystem:
        found = self.properties
        modes = Modes(int(found.get(_FILE_MODE, f"{FILE:o}"), 8), int(found.get(_DIRECTORY_MODE, f"{DIRECTORY:o}"), 8))
        return LocalFiles(modes)


class LocalFiles(LocalFileSystem):  # type: ignore[misc]  # Arrow has no types
    def __init__(self, modes: Modes) -> None:
        super().__init__()
        self._modes = modes

    def open_output_stream(self, path: str, *arguments: Any, **options: Any) -> pa.NativeFile:
        make_directories(Path(path).parent, self._modes.directory)
        create_file(Path(path), self._modes.file)  # Arrow opens what is there, and leaves its mode
        return super().open_output_stream(path, *arguments, **options)
