"""`astha init`: the files of a new project."""

from __future__ import annotations

from pathlib import Path

import click

from astha.cli.command_help import SHORT_HELP


@click.command("init", short_help=SHORT_HELP["init"])
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--force", is_flag=True, help="Replace files that exist.")
def init_command(directory: Path, force: bool) -> None:
    """Write a commented astha.yaml and subscriptions.yaml to DIR, the working directory by default.

    The registry is an embedded PostgreSQL server if its programs are installed and run here, else a SQLite file.

    \b
    Example:
      astha init shop
    """
    from astha.cli.project import write_project

    project = write_project(directory, force=force)
    for path in project.paths:
        click.echo(f"wrote {path}")
    click.echo(f"The registry is {project.registry}.")
    there = "" if directory.absolute() == Path.cwd() else f"cd {directory} && "
    click.echo(f"\nStart everything:   {there}astha up")
    click.echo("Then, beside it:    astha tables create shop.orders --column id:long! --column price:double")
    click.echo('                    echo \'{"id": 1, "price": 9.9}\' | astha insert shop.orders - --format json')
    click.echo("                    astha status")
