"""Output of the demo: chapters, commands as they are typed, what they print, and what was checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text


class Stage:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._bars: Progress | None = None

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    def begin(self, title: str, text: str) -> None:
        self._console.print()
        self._console.rule(Text(title, "bold"), align="left")
        self._print(text, "")

    def command(self, command: str) -> None:
        """Prints it whole, so that it can be copied."""
        self._console.print()
        for number, line in enumerate(command.splitlines()):
            self._console.print(
                Text.assemble(("$ ", "bold green") if number == 0 else "", (line, "bold")), soft_wrap=True
            )

    def output(self, lines: Sequence[str], most: int) -> None:
        """Prints the first lines and the last ones; on a terminal, lines are cut to its width."""
        hidden = len(lines) - most
        if hidden > 1:
            head = most * 2 // 3
            lines = [*lines[:head], f"... {hidden} lines more ...", *lines[head + hidden :]]
        for line in lines:
            text = Text(f"  {line}")
            if self.is_terminal:
                text.truncate(self._console.width, overflow="ellipsis")
            self._console.print(text, soft_wrap=True)

    def checked(self, sentence: str) -> None:
        self._print(f"  ✓ {sentence}", "green")

    def failed(self, sentence: str) -> None:
        self._print(f"  ✗ {sentence}", "bold red")

    def note(self, sentence: str) -> None:
        self._print(f"  {sentence}", "yellow")

    def say(self, sentence: str, style: str = "") -> None:
        """Prints a line whole, so that an address in it can be followed or copied."""
        self._console.print(Text(sentence, style), soft_wrap=True)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Shows on a terminal how long the command takes."""
        if not self.is_terminal:
            yield
            return
        columns = (TextColumn(" "), SpinnerColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=self._console, transient=True)
        with self._bars:
            self._bars.add_task("")
            yield

    def interrupted(self) -> None:
        """Ends what `working` shows, if an interrupt has come before its block began."""
        if self._bars is not None:
            self._bars.stop()

    def _print(self, text: str, style: str) -> None:
        self._console.print(Text(text, style), soft_wrap=not self.is_terminal)
