"""The results of checks."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    UNKNOWN = "could not check"


class PreflightResult(msgspec.Struct, frozen=True):
    check: str
    verdict: Verdict
    detail: str
    remedy: str | None = None


def ok(check: str, detail: str) -> PreflightResult:
    return PreflightResult(check, Verdict.OK, detail)


def warning(check: str, detail: str, remedy: str) -> PreflightResult:
    """A daemon can run despite a warning."""
    return PreflightResult(check, Verdict.WARNING, detail, remedy)


def problem(check: str, detail: str, remedy: str) -> PreflightResult:
    return PreflightResult(check, Verdict.PROBLEM, detail, remedy)


def unknown(check: str, detail: str, remedy: str | None = None) -> PreflightResult:
    return PreflightResult(check, Verdict.UNKNOWN, detail, remedy)
