"""A session's directory for whatever its JVM keeps on disk. Nobody removes what a kill leaves behind but the next one.

Who lives holds a lock on the directory: this process, and the JVM, which inherits it and may live a moment longer. One
that nobody holds is swept away when the next session is made.
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
_OPENED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class Scratch:
    def __init__(self) -> None:
        sweep(Path(tempfile.gettempdir()))
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
            with suppress(FileNotFoundError):
                self.lock = os.open(self.path, _OPENED)
                fcntl.flock(self.lock, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self.lock)  # swept between its making and its lock

    def remove(self) -> None:
        if self.lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.lock)
            self.lock = -1


def sweep(directory: Path) -> None:
    """What is another user's, or can't be removed, stays."""
    for path in directory.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            lock = os.open(path, _OPENED)
            try:
                if os.fstat(lock).st_uid == os.getuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                    log.info("removed what a killed Spark session has left", directory=str(path))
            finally:
                os.close(lock)
