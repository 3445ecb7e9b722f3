"""Options that several commands share, plug-ins included. Settings are imported when a command reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from astha.cli.exit_codes import adopt_redactor, failure_of, redactor_of
from astha.cli.hints import Given, with_hint
from astha.redaction import secrets_in_url
from registry.errors import Invalid

if TYPE_CHECKING:
    from astha.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

_REGISTRY_HELP = (
    "The registry: sqlite:///file.db, sqlite:////absolute/file.db, postgresql://user@host/database, "
    "or the same with cockroachdb://."
)


def _registry_url(context: click.Context, _option: click.Parameter, url: str | None) -> str:
    if url is None:
        from astha.settings import load_settings

        url = load_settings().registry.url.get_secret_value()
    return redact_url(context, _option, url)


def redact_url(context: click.Context, _option: click.Parameter, url: str) -> str:
    """The callback of options and arguments that are a registry's URL: no error of the command shows its password."""
    from registry.engines import url_secrets

    redactor_of(context).add(*secrets_in_url(url))
    with suppress(Invalid):  # the command reports it
        redactor_of(context).add(*url_secrets(url))
    return url


registry_option = click.option(
    "--registry",
    "url",
    metavar="URL",
    envvar="ASTHA_REGISTRY",
    show_envvar=True,
    callback=_registry_url,
    show_default="registry.url of the settings: sqlite:///registry.db, a file in the working directory",
    help=_REGISTRY_HELP,
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")

_SETTINGS_OPTIONS = (
    click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The settings file.  [env var: ASTHA_CONFIG]  [default: astha.yaml, if it is here]",
    ),
    click.option("--registry", "registry_url", metavar="URL", help=_REGISTRY_HELP),
    click.option(
        "--subscriptions",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file that lists components and the tables that each one receives.",
    ),
    click.option(
        "--set",
        "assignments",
        metavar="NAME=VALUE",
        multiple=True,
        help="Any setting, such as server.port=27840; `astha settings` lists them. Not for secrets.",
    ),
)


_SHORTCUTS = {"daemon_group": ("group",), "daemon_components": ("daemon", "components")}
"""Options of some commands that are settings."""

_DAEMON_OPTIONS = (
    click.option("--group", "daemon_group", metavar="NAME", help="The group of daemons. Default: group, `astha`."),
    click.option(
        "--components",
        "daemon_components",
        metavar="NAME,...",
        help="Run only these components of the subscriptions. Default: daemon.components, all.",
    ),
)


def daemon_options(command: Callable[P, T]) -> Callable[P, T]:
    """For commands that run or check a daemon, below `settings_options`."""
    for option in reversed(_DAEMON_OPTIONS):
        command = option(command)
    return command


def settings_options(command: Callable[..., T]) -> Callable[..., T]:
    """Passes `reload` to the command, which reads all settings each time it is called."""

    @wraps(command)
    def with_settings(
        *args: Any,
        config: Path | None,
        registry_url: str | None,
        subscriptions: Path | None,
        assignments: tuple[str, ...],
        **options: Any,
    ) -> T:
        flags = _flags(assignments)
        for option, (*groups, last) in _SHORTCUTS.items():
            if (value := options.pop(option, None)) is not None:
                under = flags
                for group in groups:
                    under = under.setdefault(group, {})
                under[last] = value
        if registry_url is not None:
            flags.setdefault("registry", {})["url"] = registry_url
        if subscriptions is not None:
            flags["subscriptions"] = str(subscriptions)

        context = click.get_current_context()
        used: list[Settings] = []

        def reload() -> Settings:
            from astha.settings import load_settings

            settings = load_settings(config, flags)
            used[:] = [settings]
            adopt_redactor(context, settings.redactor())
            return settings

        try:
            return command(*args, reload=reload, **options)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            given = Given(config, registry_url, options.get("server_url"))
            raise with_hint(failure_of(error, redactor_of(context)), error, given, used) from error

    for option in reversed(_SETTINGS_OPTIONS):
        with_settings = option(with_settings)
    return with_settings


def _flags(assignments: tuple[str, ...]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        *groups, last = name.strip().split(".")
        if not equals or not last:
            raise click.BadParameter(f"{name!r}: write NAME=VALUE", param_hint="--set")
        under = flags
        for group in groups:
            under = under.setdefault(group, {})
        under[last] = value
    return flags


_SERVER_OPTIONS = (
    click.option(
        "--server", "server_url", metavar="URL", help="The daemon's address. Default: server.host and server.port."
    ),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with the daemon's token. Default: server.token.",
    ),
)


def server_options(command: Callable[P, T]) -> Callable[P, T]:
    for option in reversed(_SERVER_OPTIONS):
        command = option(command)
    return command
