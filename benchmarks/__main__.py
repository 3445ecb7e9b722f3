"""Runs every benchmark, each in a process of its own so that none runs in another's memory."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import benchmarks


def main() -> int:
    failed = 0
    for module in pkgutil.iter_modules(benchmarks.__path__):
        if module.ispkg:
            command = [sys.executable, "-m", f"benchmarks.{module.name}", *sys.argv[1:]]
            failed = failed or subprocess.run(command, check=False).returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
