"""Reads manifests that clients name, with the server's own rights, and only where the server may read."""

from __future__ import annotations

from pyiceberg.io import FileIO, InputFile, OutputFile

from astha.subscribers.context import LakeSettings
from components.lib.lake.engine_commits.errors import UnreadableFiles
from components.lib.lake.iceberg.catalog import file_io_properties
from components.lib.lake.iceberg.file_io import LakeFileIO
from components.lib.lake.storage.locations import BadLocation, canonical
from components.lib.lake.storage.roots import Roots


class GuardedFileIO(FileIO):
    """Every location is checked, which blocks: not for an event loop's thread."""

    def __init__(self, inner: FileIO, roots: Roots) -> None:
        super().__init__()
        self._inner = inner
        self._roots = roots

    def extended(self, location: str) -> GuardedFileIO:
        """Also reads below the location of a table that the operator has put elsewhere."""
        return GuardedFileIO(self._inner, self._roots.extended([location]))

    def new_input(self, location: str) -> InputFile:
        """Raises `UnreadableFiles` if the file is not below a root."""
        try:
            uri = canonical(location)
        except BadLocation as error:
            raise UnreadableFiles(str(error)) from error
        if self._roots.refusal(uri) is not None:
            raise UnreadableFiles(f"{location} is not below the warehouse, lake.roots or the table's location")
        return self._inner.new_input(uri)

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError("manifests are only read")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError("manifests are only read")


def open_io(lake: LakeSettings, roots: Roots) -> GuardedFileIO:
    return GuardedFileIO(LakeFileIO(file_io_properties(lake.s3)), roots)
