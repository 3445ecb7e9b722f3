"""Commands that other distributions add to `astha`.

A distribution adds one by an entry point of the group ``astha.commands``: its name is the command's, its object a
`click.Command`. So components extend `astha`, and `astha` imports none of them.

- `astha --help` imports no plug-in whose top-level package has a module ``command_help`` with a mapping ``SHORT_HELP``
  from the command's name to its line. Other plug-ins are imported to list them.
- A plug-in that can't be imported is listed as broken; all other commands work.
- A plug-in of ours whose extra is not installed is listed with what to install, and not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.lazy import LazyGroup
from astha.extras import install, missing_extras, remedy_for

GROUP = "astha.commands"
_PLUGINS = "astha.cli.plugins"  # in the context of a command


def found() -> dict[str, EntryPoint]:
    """Returns the entry points by command name; of several with one name, the first installed."""
    commands: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        commands.setdefault(point.name, point)
    return commands


class PluggableGroup(LazyGroup):
    """The group's own commands come first: a plug-in can't replace one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_plugins(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        point = _plugins(ctx).get(cmd_name)
        if point is None:
            return None
        extras = missing_extras(point.module)
        return _needs(point, install(extras)) if extras else _loaded(point)

    def line_in_help(self, ctx: click.Context, name: str) -> str | None:
        own = super().line_in_help(ctx, name)
        if own is not None or name in self.places or name in self.commands:
            return own
        point = _plugins(ctx).get(name)
        return None if point is None or missing_extras(point.module) else short_help_of(point)


def _plugins(ctx: click.Context) -> Mapping[str, EntryPoint]:
    """Scans the installed distributions once per run of the command."""
    known: dict[str, EntryPoint] | None = ctx.meta.get(_PLUGINS)
    if known is None:
        known = ctx.meta[_PLUGINS] = found()
    return known


def short_help_of(point: EntryPoint) -> str | None:
    """Returns the line from the plug-in's ``command_help`` module, or None if there is none."""
    module = f"{point.module.partition('.')[0]}.command_help"
    try:
        if find_spec(module) is None:
            return None
        line = import_module(module).SHORT_HELP.get(point.name)
    except (Exception, SystemExit):
        return None  # importing the plug-in shows what is wrong
    return line if isinstance(line, str) else None


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
    """Returns what to install."""
    return remedy_for(module, error.name) or f"install the package {error.name!r}"


def _needs(point: EntryPoint, remedy: str) -> click.Command:
    refusal = Failure(f"the command {point.name!r} needs packages that are not installed: {remedy}", Exit.USAGE)
    return _stand_in(point, refusal, f"(not installed: {remedy})")


def _broken(point: EntryPoint, why: str) -> click.Command:
    refusal = Failure(f"the command {point.name!r} ({point.value}) can't be loaded: {why}", Exit.PROBLEM)
    return _stand_in(point, refusal, f"(broken: {why})")


def _stand_in(point: EntryPoint, refusal: Failure, short_help: str) -> click.Command:
    """Takes the place of a plug-in that can't be used, so that the help of all commands still works."""

    def refuse() -> None:
        raise refusal

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(
        point.name, callback=refuse, context_settings=anything, add_help_option=False, short_help=short_help
    )
