"""What a story consists of: chapters of steps. A step is a command for the shell and a claim about what it printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Notes = dict[str, str]
"""What earlier steps printed, for claims that compare."""

Claim = Callable[[str, Notes], str]
"""Gets what the command printed. Returns one sentence, which is true; raises `NotSo` if it is not."""


class NotSo(Exception):
    """A command did not do what the story says; the message says what is different."""


@dataclass(frozen=True)
class Step:
    """One command line, run by bash in the project's directory."""

    command: str
    claims: tuple[Claim, ...] = ()
    until: bool = False
    """Run it again until the claims hold: what it shows follows a commit by itself, a moment later."""
    status: int = 0
    """The exit status that the story expects."""
    limit_s: float = 120.0
    enters: str | None = None
    """The directory in which the following commands run."""
    most_lines: int = 16
    """Lines of the output that are shown."""
    unavailable: str = ""
    """If it fails and its errors contain this, then something can't be had here, and the chapter is left out."""


@dataclass(frozen=True)
class Service:
    """A program that runs beside the story until its end, with its output in a file."""

    program: str
    log: str
    ready: Callable[[str], bool]
    """Gets the log."""
    limit_s: float = 120.0
    most_lines: int = 3
    """Lines of the log that are shown."""
    optional: bool = False
    """The chapter is left out if it does not start."""
    pid: str = ""
    """The file that gets its process id, for a step that stops it."""

    @property
    def command(self) -> str:
        first, *rest = self.program.splitlines()
        pid = f" echo $! > {self.pid}" if self.pid else ""
        return "\n".join([f"{first} > {self.log} 2>&1 &{pid}", *rest])


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str
    text: str
    steps: tuple[Step | Service, ...]
    lacks: Callable[[], str | None] = field(default=lambda: None)
    """Returns why this machine can't play the chapter, or None."""


@dataclass(frozen=True)
class Addresses:
    """Ports of the story's servers: those of the settings, unless something listens there."""

    server: int = 27840
    catalog: int = 27841
    kafka: int = 27842
    mqtt: int = 27843

    @property
    def variables(self) -> str:
        """Settings for other ports than the default ones, as they are written before a command."""
        return " ".join(f"{name}={value}" for name, value in self.settings().items())

    def settings(self) -> dict[str, str]:
        ports = {"ASTHA_SERVER__PORT": self.server, "ASTHA_CATALOG__PORT": self.catalog}
        return {name: str(port) for name, port in ports.items() if port not in (Addresses.server, Addresses.catalog)}

    @property
    def catalog_url(self) -> str:
        return f"http://127.0.0.1:{self.catalog}"
