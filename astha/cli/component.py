"""`astha component new`: the skeleton of a component, with its test."""

from __future__ import annotations

import keyword
import re
from importlib.util import find_spec
from pathlib import Path

import click

from astha.cli.component_skeleton import skeleton
from astha.cli.lazy import LazyGroup
from astha.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9_]*[a-z0-9]")


@click.group("component", cls=LazyGroup, short_help="Create a new component.")
def component_commands() -> None:
    """Create a new component.

    \b
    Example:
      astha component new topic_sizes --directory plugins
    """


@component_commands.command("new", short_help="Write a component's skeleton and its test.")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    show_default="the current one",
    help="Where to create the directory NAME.",
)
@click.option(
    "--durable",
    is_flag=True,
    help="Keep its state in a SQLite file, with exactly-once effect; else in memory, refreshed at every start.",
)
def new_command(name: str, directory: Path, durable: bool) -> None:
    """Write the skeleton of the component NAME, its test and its entry for subscriptions.yaml.

    NAME has lower-case letters, digits and underscores. Nothing that exists is overwritten.

    \b
    Example:
      astha component new topic_sizes --directory plugins
      pytest plugins/topic_sizes
    """
    target = directory / name
    _require_usable(name, target)
    try:
        target.mkdir()
    except OSError as error:
        raise ConfigError(f"{target} can't be created: {error.strerror}") from error
    files = skeleton(name, durable=durable)
    for file, text in files.items():
        (target / file).write_text(text, encoding="utf-8")
        click.echo(f"wrote {target / file}")
    click.echo("\nAdd to subscriptions.yaml:\n")
    click.echo(files["subscriptions.yaml"])
    click.echo(f"Test it:         pytest {target}")
    click.echo(f"Run a daemon:    PYTHONPATH={directory} astha run")


def _require_usable(name: str, target: Path) -> None:
    """Raises ConfigError if the name can't be imported or hides an installed module, or if the directory exists."""
    if _NAME.fullmatch(name) is None or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} can't be a component's name: use lower-case letters, digits and underscores, as in topic_sizes"
        )
    if not target.parent.is_dir():
        raise ConfigError(f"there is no directory {target.parent}: create it, or choose another with --directory")
    if target.exists():
        raise ConfigError(f"{target} exists already: choose another name, or another --directory")
    found = find_spec(name)
    if found is not None and found.origin is not None:
        raise ConfigError(f"{name!r} is the name of an installed module, which it would hide: choose another name")
