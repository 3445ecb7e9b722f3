"""Subcommands that others bring along.

A distribution adds one by an entry point of the group ``astha.commands``: its name is the command's, its object a
`click.Command`. So components extend `astha`, and `astha` imports none of them. One that can't be loaded costs its own
command, never the others. One of ours whose extra is not installed is listed with what to install, and not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

import click

from astha.cli.exit_codes import Exit, Failure
from astha.extras import install, missing_extras, remedy_for

GROUP = "astha.commands"


def found() -> dict[str, EntryPoint]:
    """By command name; of several with one name, the first installed."""
    commands: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        commands.setdefault(point.name, point)
    return commands


class PluggableGroup(click.Group):
    """A group whose own commands come first; a plug-in can't take the name of one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *self._plugged()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = self._plugged().get(cmd_name)
        if point is None:
            return None
        extras = missing_extras(point.module)
        return _needs(point, install(extras)) if extras else _loaded(point)

    def _plugged(self) -> Mapping[str, EntryPoint]:
        return found()


def _loaded(point: EntryPoint) -> click.Command:
    try:
        command = point.load()
    except ModuleNotFoundError as error:
        return _needs(point, absent_package(point.module, error))
    except (Exception, SystemExit) as error:
        return _broken(point, f"{type(error).__name__}: {error}")
    if not isinstance(command, click.Command):
        return _broken(point, "it is not a click command")
    return command


def absent_package(module: str, error: ModuleNotFoundError) -> str:
    """What to install."""
    return remedy_for(module, error.name) or f"install the package {error.name!r}"


def _needs(point: EntryPoint, remedy: str) -> click.Command:
    refusal = Failure(f"the command {point.name!r} needs packages that are not installed: {remedy}", Exit.USAGE)
    return _stand_in(point, refusal, f"(not installed: {remedy})")


def _broken(point: EntryPoint, why: str) -> click.Command:
    refusal = Failure(f"the command {point.name!r} ({point.value}) can't be loaded: {why}", Exit.PROBLEM)
    return _stand_in(point, refusal, f"(broken: {why})")


def _stand_in(point: EntryPoint, refusal: Failure, short_help: str) -> click.Command:
    """In place of a plug-in, so that the help of all commands still works."""

    def refuse() -> None:
        raise refusal

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        point.name, callback=refuse, context_settings=anything, add_help_option=False, short_help=short_help
    )
