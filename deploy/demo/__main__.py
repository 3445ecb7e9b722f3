from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

from deploy.demo import machine
from deploy.demo.chapters import all_chapters
from deploy.demo.player import Player
from deploy.demo.processes import Processes
from deploy.demo.stage import Stage
from deploy.demo.story import Addresses

_NAMES = [chapter.name for chapter in all_chapters(Addresses())]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="demo", description="Show Astha at work, command by command. Nothing is left."
    )
    parser.add_argument("--chapters", metavar="NAME,...", help=f"play only these: {', '.join(_NAMES)}")
    parser.add_argument("--no-stay", action="store_true", help="end when the story has ended, also on a terminal")
    given = parser.parse_args()
    names = given.chapters.split(",") if given.chapters else _NAMES
    if unknown := sorted(set(names) - set(_NAMES)):
        parser.error(f"no such chapter: {', '.join(unknown)}")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    stage = Stage()
    try:
        return play({"start", *names}, stage, stay=not given.no_stay and stage.is_terminal and sys.stdin.isatty())
    except KeyboardInterrupt:
        stage.say("Interrupted. Everything is stopped and removed.")
        return 128 + signal.SIGINT


def play(names: set[str], stage: Stage, *, stay: bool) -> int:
    began = time.monotonic()
    addresses = machine.choose_addresses()
    scratch = Path(tempfile.mkdtemp(prefix="astha-demo-"))
    processes = None
    try:
        scratch.chmod(0o711)  # the user of a PostgreSQL server that root starts enters it
        processes = Processes(machine.environment(scratch, addresses))
        stage.say("Astha, by commands that you can type: each is shown, then run, and its claims are checked.", "bold")
        stage.say(f"All of it happens in {scratch}, which is removed at the end. About two minutes.")
        if addresses.variables:
            stage.note(f"Usual ports are in use here, so these commands get others: {addresses.variables}")
        player = Player(stage, processes, scratch)
        up = player.play([chapter for chapter in all_chapters(addresses) if chapter.name in names])
        stage.say(f"\nThe story took {time.monotonic() - began:.0f} s.")
        for failure in player.failures:
            stage.failed(failure)
        if stay and up:
            _stay(stage, addresses, player.directory)
        return 1 if player.failures else 0
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the end has limits of its own
        with suppress(OSError, SystemExit):  # of a terminal or a pipe that was closed
            stage.interrupted()
            stage.say("\nStopping everything ...")
        if processes is not None:
            processes.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _stay(stage: Stage, addresses: Addresses, project: Path) -> None:
    """Returns at Ctrl-C."""
    url = f"http://127.0.0.1:{addresses.server}/dashboard/#token={machine.token_of(project)}"
    stage.say(f"\nThe dashboard:  {url}", "bold")
    own = " ".join(filter(None, (addresses.variables, f"PATH={Path(sys.executable).parent}:$PATH")))
    stage.say(f"More commands:  cd {project} && {own} astha top")
    stage.say("Ctrl-C stops everything and removes it.")
    with suppress(KeyboardInterrupt):
        signal.pause()


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
