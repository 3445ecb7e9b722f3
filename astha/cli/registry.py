"""`astha registry`: the schema of a registry, and copies of it. SQLAlchemy is imported when a command runs."""

from __future__ import annotations

import asyncio
from time import monotonic, sleep
from typing import TYPE_CHECKING

import click

from astha.cli.command_help import SHORT_HELP
from astha.cli.exit_codes import Exit, Failure
from astha.cli.lazy import LazyGroup
from astha.cli.options import json_option, redact_url, registry_option
from astha.cli.output import confirm, print_json, print_pairs
from astha.cli.progress import progress

if TYPE_CHECKING:
    from registry.copy import CopyProgress
    from registry.models import LocationName
    from registry.schema_status import SchemaStatus

_POLL_S = 0.5


@click.group("registry", cls=LazyGroup, short_help=SHORT_HELP["registry"])
def registry_commands() -> None:
    """Create, migrate, inspect or copy a registry.

    \b
    Example:
      astha registry migrate --registry sqlite:////var/lib/astha/registry.db
    """


@registry_commands.command("migrate", short_help="Create or migrate the registry's schema.")
@registry_option
@click.option(
    "--revision",
    default="head",
    show_default=True,
    help="Target revision; an older one downgrades, base removes the schema.",
)
@click.option("--yes", is_flag=True, help="Don't ask before going to an older revision, which may drop data.")
@click.option(
    "--region",
    "regions",
    multiple=True,
    metavar="REGION",
    help="On CockroachDB, place the tables in these regions; the first is the primary one. Once for each.",
)
@json_option
def migrate_command(url: str, revision: str, yes: bool, regions: tuple[str, ...], as_json: bool) -> None:
    """Create the registry's schema, or migrate it to the version that this Astha needs.

    All steps are one transaction, and only one process migrates at a time. Migrating again changes nothing, except that
    a missing or incomplete publication is repaired. On CockroachDB, steps are committed one by one: run an interrupted
    migration again.

    \b
    Examples:
      astha registry migrate
      astha registry migrate --registry postgresql://astha@db/registry
      astha registry migrate --registry cockroachdb://astha@db/registry
    """
    from astha.cli.store import with_store
    from astha.lake_locations import record_explicit
    from astha.settings import load_settings
    from registry.cockroachdb.schema import Placement
    from registry.migrate import migrate, require_known
    from registry.schema_status import status

    require_known(revision)
    before = status(url)
    if revision not in ("head", before.found) and before.state != "missing":
        step = f"{before.url} goes from schema {before.found} to {revision}"
        confirm(f"{step}. Data that only the newer schema has is lost", yes)
    settings = load_settings(flags={"registry": {"url": url}})
    with progress(f"migrating {before.url}", quiet=as_json):
        placement = Placement(regions) if regions else None
        after = migrate(url, settings.registry.store, revision=revision, placement=placement)
    has_warehouse = True
    if after.state in ("current", "compatible"):
        has_warehouse = with_store(settings, lambda store: record_explicit(settings, store))
    if as_json:
        print_json(
            {"url": after.url, "before": before.found, "found": after.found, "expected": after.expected,
             "repaired": after.repaired}
        )  # fmt: skip
    elif after.state == "compatible":
        click.echo(f"{after.url} has schema {after.found}, newer than {after.expected} and compatible with it")
    elif before.found == after.found:
        click.echo(f"{after.url} has schema {after.found or 'base'} already")
    else:
        click.echo(f"{after.url} migrated from {before.found or 'nothing'} to {after.found or 'nothing'}")
    if not as_json:
        for what in after.repaired:
            click.echo(f"repaired: {what}; the daemon refreshes every component")
        if not has_warehouse:
            click.echo("it has no warehouse yet: `astha registry locations --warehouse LOCATION` sets it")


@registry_commands.command("status", short_help="Show whether the registry's schema is current.")
@registry_option
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait up to this long for a registry that is not reachable, or has no schema or an older one.",
)
@json_option
def status_command(url: str, wait_s: float, as_json: bool) -> None:
    """Show whether this Astha can use the registry's schema.

    Exits with 0 if the schema is current, or newer and compatible; with 1 if it is missing, older or too new; with 3 if
    the registry is not reachable.

    \b
    Examples:
      astha registry status
      astha registry status --wait 60 --registry postgresql://astha@db/registry
    """
    with progress("waiting for the registry", quiet=as_json):
        found = _status_within(url, wait_s)
    if as_json:
        print_json(found)
    else:
        print_pairs(
            {"registry": found.url, "schema": found.found or "none", "expected": found.expected, "state": found.state}
        )
    if found.state not in ("current", "compatible"):
        if not as_json:
            found.require_usable()
        raise click.exceptions.Exit(Exit.PROBLEM)


def _status_within(url: str, wait_s: float) -> SchemaStatus:
    """Returns the status once a migration has been made, or after `wait_s`."""
    from registry.errors import Unavailable
    from registry.schema_status import status

    end = monotonic() + wait_s
    while True:
        try:
            found = status(url)
            if found.state not in ("missing", "old") or monotonic() >= end:
                return found
        except Unavailable:
            if monotonic() >= end:
                raise
        sleep(_POLL_S)


@registry_commands.command("locations", short_help="Show or change where new tables and topics are stored.")
@registry_option
@click.option("--warehouse", metavar="LOCATION", help="The new location of new tables.")
@click.option("--streams", metavar="LOCATION", help="The new location of the objects of topics.")
@click.option("--yes", is_flag=True, help="Don't ask before changing a recorded location.")
@json_option
def locations_command(url: str, warehouse: str | None, streams: str | None, yes: bool, as_json: bool) -> None:
    """Show where new tables and the objects of topics go, or change it.

    Tables and objects that exist stay where they are, and are found there. Add the former location to lake.roots, so
    that objects of topics below it can be deleted when their retention ends. Restart the daemons afterwards.

    \b
    Examples:
      astha registry locations
      astha registry locations --warehouse s3://lake/prod
    """
    from astha.cli.store import with_store
    from astha.locations import canonical
    from astha.settings import load_settings

    settings = load_settings(flags={"registry": {"url": url}})
    given: dict[LocationName, str] = {}
    if warehouse is not None:
        given["warehouse"] = canonical(warehouse)
    if streams is not None:
        given["streams"] = canonical(streams)
    before = with_store(settings, lambda store: store.get_lake_locations())
    changed = {name: location for name, location in given.items() if before.get(name, location) != location}
    if changed:
        text = ", ".join(f"{name} from {before[name]} to {location}" for name, location in changed.items())
        confirm(f"this changes {text}; what exists stays where it is", yes)
    if given:
        with_store(settings, lambda store: store.record_lake_locations(given))
    found = before | {str(name): location for name, location in given.items()}
    if as_json:
        print_json({"warehouse": found.get("warehouse"), "streams": found.get("streams")})
    elif found:
        print_pairs(found)
    else:
        click.echo("no locations yet: the first command that writes files records them")


@registry_commands.command("copy", short_help="Copy a whole registry to another database.")
@click.argument("source", metavar="FROM", callback=redact_url)
@click.argument("target", metavar="TO", callback=redact_url)
@click.option(
    "--migrate/--no-migrate", "may_migrate", default=True, show_default=True, help="Create TO's schema if it has none."
)
@json_option
def copy_command(source: str, target: str, may_migrate: bool, as_json: bool) -> None:
    """Copy a whole registry from one URL to another, on any backends.

    FROM is read as one consistent snapshot. Writers may continue meanwhile, but their later changes are not copied:
    stop them first if TO is to replace FROM. TO must be empty. It receives all rows or none, and row counts are
    compared before anything becomes visible. The ledger is not copied, so a daemon on TO starts with a refresh of
    every component.

    \b
    Example:
      astha registry copy sqlite:///registry.db postgresql://astha@db/registry
    """
    from registry.engines import display_url, parse_url

    if parse_url(source) == parse_url(target):
        raise Failure(f"FROM and TO are the same registry, {display_url(parse_url(source))}", Exit.USAGE)
    started = monotonic()
    with progress("copying", quiet=as_json, unit="rows") as report:
        copied = asyncio.run(_copy(source, target, may_migrate, report))
    seconds = round(monotonic() - started, 3)
    names = {"from": display_url(parse_url(source)), "to": display_url(parse_url(target))}
    if as_json:
        print_json({**names, "rows": copied, "seconds": seconds})
    else:
        total = sum(copied.values())
        click.echo(f"{names['to']} has all {total:,} rows of {names['from']} ({seconds:.1f} s)")


async def _copy(source_url: str, target_url: str, may_migrate: bool, report: CopyProgress) -> dict[str, int]:
    from astha.settings import load_settings
    from registry.connect import open_store
    from registry.copy import copy_registry
    from registry.engines import StoreSettings
    from registry.migrate import migrate
    from registry.schema_status import status

    no_limit = StoreSettings(statement_timeout_s=0)  # counting a large table may take long
    (await asyncio.to_thread(status, source_url, no_limit)).require_current()  # or rows of newer tables would be lost
    source = await open_store(source_url, settings=no_limit)
    try:
        if may_migrate and (await asyncio.to_thread(status, target_url)).state == "missing":
            await asyncio.to_thread(migrate, target_url, load_settings().registry.store)
        target = await open_store(target_url, settings=no_limit)
        try:
            return await copy_registry(source, target, report)
        finally:
            await target.close()
    finally:
        await source.close()
