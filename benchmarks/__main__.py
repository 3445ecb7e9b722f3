"""Every benchmark, each in a process of its own so that none runs in another's memory."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import benchmarks


def main() -> int:
    names = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if not module.name.startswith("_")]
    failed = 0
    for name in names:
        if hasattr(importlib.import_module(f"benchmarks.{name}"), "measure"):
            done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=False)
            failed = failed or done.returncode
    return failed


if __name__ == "__main__":
    sys.exit(main())
