"""Translates Spark's failures, by their text: Spark has no codes for most of them."""

from __future__ import annotations

import re

from components.lib.spark.errors import JobFailed, OutOfMemory, SessionProblem, SparkError, WorkerCrashed

_MEMORY = re.compile(
    r"java\.lang\.OutOfMemoryError|OOMKilled|[Mm]emory limit|exceeding (?:physical|memory)|"
    r"[Ee]xit(?:ed with)? (?:code|status):? (?:52|137)\b|MemoryError|Cannot allocate memory"
)
_WORKER_DIED = re.compile(r"Python worker exited unexpectedly|worker.*crashed", re.IGNORECASE)
_NO_PACKAGE = re.compile(r"(?:ModuleNotFoundError|ImportError): ([^\n]+)")
_OTHER_PYTHON = re.compile(r"PYTHON_VERSION_MISMATCH|has different (?:minor )?version")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_CRASH = re.compile(r"Fatal Python error: ([^\n]+)")

WORKER_NEEDS = (
    "workers need the package astha[lake,spark] of the same version as here: use one image or virtualenv for all, "
    "or send one along with spark.archives and 'python', or spark.submit.pyFiles"
)


def explain(text: str) -> SparkError:
    """``text`` is the whole error of a job, with its Java and Python stack traces."""
    if found := _NO_PYTHON.search(text):
        return SessionProblem(f"the workers have no Python {found[1]!r}: set 'python' to one that they have")
    if _OTHER_PYTHON.search(text):
        return SessionProblem(f"the workers run another Python than this process ({_first(text)}): {WORKER_NEEDS}")
    if found := _NO_PACKAGE.search(text):
        return SessionProblem(f"the workers lack something ({found[1].strip()}): {WORKER_NEEDS}")
    if found := _CRASH.search(text):
        return WorkerCrashed(f"a worker crashed: {found[1].strip()}")
    if _MEMORY.search(text):
        return OutOfMemory(f"Spark ran out of memory: {_line(text, _MEMORY)}")
    if _WORKER_DIED.search(text):
        return OutOfMemory("a worker was killed during its task, most likely because it used too much memory")
    return JobFailed(f"the job failed: {_first(text)}")


def _line(text: str, pattern: re.Pattern[str]) -> str:
    return next((line.strip()[:300] for line in text.splitlines() if pattern.search(line)), "")


def _first(text: str) -> str:
    """Returns the first line with content."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("An error occurred while calling") and len(lines) > 1:
        del lines[0]
    return lines[0][:500] if lines else "no reason given"
