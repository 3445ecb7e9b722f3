"""`astha check`: checks before a daemon is started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.exit_codes import Exit
from astha.cli.options import daemon_options, json_option, settings_options
from astha.cli.output import print_json
from astha.cli.progress import progress

if TYPE_CHECKING:
    from astha.preflight import PreflightResult
    from astha.settings import Settings


@click.command("check", short_help=SHORT_HELP["check"])
@settings_options
@daemon_options
@click.option("--grants", "daemon_role", metavar="ROLE", help="Print the GRANTs that ROLE needs to run this daemon.")
@click.option("--reader-grants", "reader_role", metavar="ROLE", help="Print the GRANTs that let ROLE only read.")
@json_option
def check_command(
    reload: Callable[[], Settings], daemon_role: str | None, reader_role: str | None, as_json: bool
) -> None:
    """Check everything that a daemon needs, without changing anything, and print how to fix what is wrong.

    Exits with 0 if there are at most warnings, with 1 if there is a problem, with 3 if there is none but a check could
    not be made.

    \b
    Examples:
      astha check
      astha check --grants astha | psql "$OWNER_URL"
    """
    from astha.preflight import grants, preflight

    if daemon_role and reader_role:
        raise click.UsageError("--grants and --reader-grants print different scripts: use one at a time")
    if role := daemon_role or reader_role:
        click.echo(asyncio.run(grants(reload(), role, reader=daemon_role is None)), nl=False)
        return
    settings = reload()
    with progress("checking", quiet=as_json):
        results = asyncio.run(preflight(settings))
    code = _code(results)
    if as_json:
        print_json({"ok": code == Exit.OK, "results": results})
    else:
        _print(results)
    raise click.exceptions.Exit(code)


def _code(results: Sequence[PreflightResult]) -> Exit:
    from astha.preflight import Verdict

    verdicts = {result.verdict for result in results}
    if Verdict.PROBLEM in verdicts:
        return Exit.PROBLEM
    return Exit.UNAVAILABLE if Verdict.UNKNOWN in verdicts else Exit.OK


def _print(results: Sequence[PreflightResult]) -> None:
    from astha.preflight import Verdict

    width = max(len(result.check) for result in results)
    colours = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "red", Verdict.UNKNOWN: "yellow"}
    for result in results:
        verdict = click.style(f"{result.verdict:<15}", fg=colours[result.verdict])
        click.echo(f"{verdict}  {result.check:<{width}}  {result.detail}")
        if result.remedy:
            click.echo(f"{'':<15}  {'':<{width}}  -> {result.remedy}")
