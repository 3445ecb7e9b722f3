"""What steps claim. Each function returns a `Claim`; ``sentence`` is what it says if it is true."""

from __future__ import annotations

import re

from deploy.demo.story import Claim, Notes, NotSo


def prints(expected: str, sentence: str = "") -> Claim:
    """The text is part of the output."""

    def check(output: str, _notes: Notes) -> str:
        if expected not in output:
            raise NotSo(f"the output does not contain {expected!r}")
        return sentence

    return check


def lacks(unexpected: str, sentence: str = "") -> Claim:
    def check(output: str, _notes: Notes) -> str:
        if unexpected in output:
            raise NotSo(f"the output contains {unexpected!r}")
        return sentence

    return check


def counts(pattern: str, number: int, sentence: str) -> Claim:
    """The pattern is found so many times."""

    def check(output: str, _notes: Notes) -> str:
        found = len(re.findall(pattern, output, re.MULTILINE))
        if found != number:
            raise NotSo(f"{found} instead of {number} times {pattern!r} in the output")
        return sentence

    return check


def notes(name: str, pattern: str) -> Claim:
    """Remembers what the pattern's group matches, under ``name``."""

    def check(output: str, notes: Notes) -> str:
        notes[name] = _matched(pattern, output)
        return ""

    return check


def same(name: str, pattern: str, sentence: str) -> Claim:
    """The pattern's group matches what was noted under ``name``."""

    def check(output: str, notes: Notes) -> str:
        found = _matched(pattern, output)
        if found != _noted(name, notes):
            raise NotSo(f"{name}: {found} instead of {notes[name]}")
        return f"{sentence} ({found})"

    return check


def less(name: str, pattern: str, sentence: str) -> Claim:
    """The number that the pattern's group matches is smaller than the one noted under ``name``."""

    def check(output: str, notes: Notes) -> str:
        found = _matched(pattern, output)
        before = _noted(name, notes)
        if not _number(found) < _number(before):
            raise NotSo(f"{name}: {found}, which is not less than {before}")
        return f"{sentence}: {before} before, {found} now"

    return check


def _matched(pattern: str, output: str) -> str:
    found = re.search(pattern, output, re.MULTILINE)
    if found is None:
        raise NotSo(f"the output does not contain {pattern!r}")
    return found[1]


def _noted(name: str, notes: Notes) -> str:
    if name not in notes:
        raise NotSo(f"{name} is not known, because an earlier step has failed")
    return notes[name]


def _number(text: str) -> float:
    return float(text.replace(",", ""))
