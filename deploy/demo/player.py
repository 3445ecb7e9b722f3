"""Plays chapters: shows each command, runs it, shows its output, and checks what the story claims."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from deploy.demo.processes import Ended, Processes, TooLong
from deploy.demo.stage import Stage
from deploy.demo.story import Chapter, Notes, NotSo, Service, Step

_AGAIN_S = 0.3
_LAST_LINES = 12  # of the errors of a command that failed


class Unavailable(Exception):
    """Something that the chapter needs can't be had on this machine; the message says what."""


class Player:
    def __init__(self, stage: Stage, processes: Processes, directory: Path) -> None:
        self._stage = stage
        self._processes = processes
        self.directory = directory
        self._notes: Notes = {}
        self.failures: list[str] = []

    def play(self, chapters: Sequence[Chapter]) -> bool:
        """A failed step ends its chapter; the others are played if the first one succeeded. Returns whether it did."""
        for number, chapter in enumerate(chapters, 1):
            self._stage.begin(f"{number}  {chapter.title}", chapter.text)
            if (reason := chapter.lacks()) is not None:
                self._stage.note(f"This chapter is left out: {reason}")
                continue
            try:
                for step in chapter.steps:
                    self._stage.command(step.command)
                    self._start(step) if isinstance(step, Service) else self._run(step)
            except (NotSo, TooLong) as error:
                self._stage.failed(str(error))
                self.failures.append(f"{chapter.title}: {step.command.splitlines()[0]}: {error}")
                if number == 1:
                    return False
            except Unavailable as missing:
                self._stage.note(f"The rest of this chapter is left out: {missing}")
        return True

    def _run(self, step: Step) -> None:
        deadline = time.monotonic() + step.limit_s
        with self._stage.working():
            while True:
                ended = self._processes.run(step.command, self.directory, step.limit_s)
                sentences, problem = self._check(step, ended)
                if problem is None or not step.until or time.monotonic() > deadline:
                    break
                time.sleep(_AGAIN_S)
        self._stage.output(ended.output.rstrip().splitlines(), step.most_lines)
        if problem is not None:
            if step.unavailable in ended.errors and step.unavailable:
                raise Unavailable(_line_with(step.unavailable, ended.errors))
            self._stage.output(ended.errors.rstrip().splitlines()[-_LAST_LINES:], _LAST_LINES)
            raise problem
        for sentence in filter(None, sentences):
            self._stage.checked(sentence)
        if step.enters is not None:
            self.directory /= step.enters

    def _check(self, step: Step, ended: Ended) -> tuple[list[str], NotSo | None]:
        if ended.status != step.status:
            return [], NotSo(f"exit status {ended.status}, expected {step.status}")
        try:
            return [claim(ended.output, self._notes) for claim in step.claims], None
        except NotSo as error:
            return [], error

    def _start(self, service: Service) -> None:
        log = self.directory / service.log
        process = self._processes.start(service.program, log, self.directory)
        if service.pid:
            (self.directory / service.pid).write_text(str(process.pid))
        deadline = time.monotonic() + service.limit_s
        with self._stage.working():
            while not service.ready(text := log.read_text(errors="replace")):
                ended = process.poll() is not None
                if ended or time.monotonic() > deadline:
                    lines = text.rstrip().splitlines()
                    why = f"it ended with status {process.returncode}" if ended else "it is not ready"
                    if service.optional:
                        raise Unavailable(lines[-1] if lines else why)
                    self._stage.output(lines[-_LAST_LINES:], _LAST_LINES)
                    raise NotSo(f"{why}, after {service.limit_s - deadline + time.monotonic():.0f} s")
                time.sleep(_AGAIN_S / 3)
        self._stage.output(text.rstrip().splitlines()[: service.most_lines], service.most_lines)


def _line_with(text: str, lines: str) -> str:
    return next(line.strip() for line in lines.splitlines() if text in line)
