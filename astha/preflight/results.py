"""The results of checks."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "could not check"


class Finding(msgspec.Struct, frozen=True):
    check: str
    verdict: Verdict
    detail: str
    remedy: str | None = None


def ok(check: str, detail: str) -> Finding:
    return Finding(check, Verdict.OK, detail)


def warning(check: str, detail: str, remedy: str) -> Finding:
    """A daemon can run despite a warning."""
    return Finding(check, Verdict.WARNING, detail, remedy)


def problem(check: str, detail: str, remedy: str) -> Finding:
    return Finding(check, Verdict.PROBLEM, detail, remedy)


def unknown(check: str, detail: str, remedy: str | None = None) -> Finding:
    return Finding(check, Verdict.UNKNOWN, detail, remedy)
