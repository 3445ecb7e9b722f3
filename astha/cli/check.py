"""`astha check`: whether a daemon could run, before one does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import click

from astha.cli.exit_codes import Exit
from astha.cli.options import json_option, settings_options
from astha.cli.output import print_json
from astha.preflight import Finding, Verdict, grants, preflight
from astha.settings import Settings


@click.command("check", short_help="Whether a daemon could run: server, schema, components.")
@settings_options
@click.option("--grants", "daemon_role", metavar="ROLE", help="Print the GRANTs that ROLE needs to run this daemon.")
@click.option("--reader-grants", "reader_role", metavar="ROLE", help="Print the GRANTs that let ROLE only read.")
@json_option
def check_command(
    reload: Callable[[], Settings], daemon_role: str | None, reader_role: str | None, as_json: bool
) -> None:
    """Look at everything that a daemon needs, change nothing, and say how to mend what is wrong.

    \b
    astha check
    astha check --grants astha | psql "$OWNER_URL"

    Exits with 0 if all is well or there are only warnings, with 1 if there is a problem, with 3 if there is none but
    something could not be checked.
    """
    if daemon_role and reader_role:
        raise click.UsageError("--grants and --reader-grants are two scripts: ask for one at a time")
    if role := daemon_role or reader_role:
        click.echo(asyncio.run(grants(reload(), role, reader=daemon_role is None)), nl=False)
        return
    findings = asyncio.run(preflight(reload()))
    code = _code(findings)
    if as_json:
        print_json({"ok": code == Exit.OK, "findings": findings})
    else:
        _print(findings)
    raise click.exceptions.Exit(code)


def _code(findings: Sequence[Finding]) -> Exit:
    verdicts = {finding.verdict for finding in findings}
    if Verdict.PROBLEM in verdicts:
        return Exit.PROBLEM
    return Exit.UNAVAILABLE if Verdict.UNKNOWN in verdicts else Exit.OK


def _print(findings: Sequence[Finding]) -> None:
    width = max(len(finding.check) for finding in findings)
    colours = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "red", Verdict.UNKNOWN: "yellow"}
    for finding in findings:
        verdict = click.style(f"{finding.verdict:<15}", fg=colours[finding.verdict])
        click.echo(f"{verdict}  {finding.check:<{width}}  {finding.detail}")
        if finding.remedy:
            click.echo(f"{'':<15}  {'':<{width}}  -> {finding.remedy}")
