"""Options of the form NAME=VALUE."""

from __future__ import annotations

from astha.cli.exit_codes import Exit, Failure


def assignments(pairs: tuple[str, ...], option: str, example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise Failure(f"{option} {pair!r}: write {option} {example}", Exit.USAGE)
        found[name.strip()] = value.strip()
    return found
