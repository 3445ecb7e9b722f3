"""Options that several commands share, plug-ins included."""

from __future__ import annotations

import click

DEFAULT_REGISTRY = "sqlite:///registry.db"

registry_option = click.option(
    "--registry",
    "url",
    metavar="URL",
    envvar="ASTHA_REGISTRY",
    show_envvar=True,
    default=DEFAULT_REGISTRY,
    show_default=f"{DEFAULT_REGISTRY}, a file in the working directory",
    help="The registry: sqlite:///file.db, sqlite:////absolute/file.db or postgresql://user@host/database.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object, for machines.")
