"""A session's directory for what its JVM keeps on disk.

This process holds a lock on it, and so does the JVM, which inherits the lock and may live a moment longer. A directory
that is not locked was left by a killed session; the next session removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_PREFIX = "astha-spark-"
_OPEN_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class WorkDir:
    def __init__(self) -> None:
        remove_abandoned(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            with suppress(FileNotFoundError):
                self.lock = os.open(self.path, _OPEN_FLAGS)
                fcntl.flock(self.lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self.lock)  # removed between its creation and the lock

    def remove(self) -> None:
        if self.lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)
            self.lock = -1


def remove_abandoned(directory: Path) -> None:
    """Leaves directories of other users, and those that can't be removed."""
    for path in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(path, _OPEN_FLAGS)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                    log.info("abandoned spark directory removed", directory=str(path))
            finally:
                os.close(lock)
