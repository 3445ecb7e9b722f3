from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import FrameType

from deploy.demo import registry
from deploy.demo.stage import Stage
from registry.embedded import EmbeddedPostgres
from registry.errors import RegistryError, Unavailable


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description="Shows Astha at work, and leaves nothing behind.")
    parser.add_argument("--segments", type=_positive, default=1_000_000, metavar="N", help="how many segments to write")
    wanted = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)  # so that a server and a directory of ours don't outlive us
    stage = Stage()
    try:
        play(wanted.segments, stage)
    except RegistryError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted", file=sys.stderr)
        return 130
    return 0


def play(segments: int, stage: Stage) -> None:
    started = monotonic()
    outcomes: dict[str, registry.Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="astha-demo-") as directory, ExitStack() as servers:
        urls = {"SQLite": f"sqlite:///{Path(directory) / 'registry.db'}"}
        try:
            server = servers.enter_context(EmbeddedPostgres())
        except Unavailable as error:
            stage.say(f"no PostgreSQL here, going on with SQLite alone: {error}")
        else:
            stage.say(f"PostgreSQL started from {server.bin}")
            urls["PostgreSQL"] = server.url("postgres")
        for name, url in urls.items():
            outcomes[name] = asyncio.run(registry.show(name, url, segments, stage))
    columns = [outcome.cells() for outcome in outcomes.values()]
    rows = {what: [cells[what] for cells in columns] for what in columns[0]}
    stage.show("What the registry did", list(outcomes), rows)
    stage.say(f"All of it is removed again; {monotonic() - started:.0f} s in all.")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _leave(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)


if __name__ == "__main__":
    sys.exit(main())
