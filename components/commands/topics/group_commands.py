"""The commands of `astha groups`: list, lag, reset, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import confirm, print_json, time_text
from astha.cli.progress import progress
from astha.cli.store import with_store
from astha.cli.table import print_rows
from astha.clock import SystemLoopClock
from astha.settings import Settings
from astha.wiring import context
from components.commands.parameters import OffsetSpecParam
from components.lib.streams.agents.holders import current_holders
from components.lib.streams.group_consumer import LEASE_S
from components.lib.streams.offset_spec import OffsetSpec, resolve_offsets
from components.lib.streams.offsets import GroupOffsets, PartitionLag
from components.lib.streams.read_context import ReadContext, open_read_context
from registry.connect import open_store
from registry.contract import MetadataStore

T = TypeVar("T")


@click.command("list", short_help="List groups.")
@settings_options
@json_option
def list_command(reload: Callable[[], Settings], as_json: bool) -> None:
    """List the groups that have committed offsets, by name.

    \b
    Example:
      astha groups list --json
    """
    groups = with_store(reload(), lambda store: GroupOffsets(store).list_groups())
    if as_json:
        print_json({"groups": groups})
    elif not groups:
        click.echo("no groups: `astha consume TOPIC --group NAME` creates one")
    else:
        rows = [[group.group_id, time_text(group.created_at), time_text(group.updated_at)] for group in groups]
        print_rows(("group", "created", "updated"), rows)


@click.command("lag", short_help="Show the lag of a group.")
@click.argument("group")
@click.option("--topic", help="Only this topic.")
@settings_options
@json_option
def lag_command(group: str, topic: str | None, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show GROUP's committed offsets and its lag per partition.

    Exits with 1 if it has never committed offsets.

    \b
    Example:
      astha groups lag billing --topic orders
    """
    lags = with_store(reload(), lambda store: GroupOffsets(store).lag(group, topic))
    if as_json:
        print_json({"group": group, "lag": sum(lag.lag for lag in lags), "partitions": [_view(lag) for lag in lags]})
    elif lags:
        _print(lags)
    if not lags:
        raise Failure(f"group {group!r} has committed no offsets: list groups with `astha groups list`", Exit.PROBLEM)


@click.command("reset", short_help="Move a group to other offsets.")
@click.argument("group")
@click.argument("topic")
@click.option(
    "--to", "spec", type=OffsetSpecParam(), required=True, help="earliest, latest, an offset, a time, or -15m."
)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this partition; repeatable."
)
@settings_options
@json_option
def reset_command(
    group: str,
    topic: str,
    spec: OffsetSpec,
    partitions: tuple[int, ...],
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Commit other offsets of TOPIC for GROUP. Refused while the group has active consumers.

    An offset beyond the end of a partition is refused, and nothing changes. An offset below the first retained one
    becomes that one.

    \b
    Examples:
      astha groups reset billing orders --to earliest
      astha groups reset billing orders --to -15m --partition 3
    """

    async def reset(store: MetadataStore, read_context: ReadContext) -> tuple[dict[int, int], dict[int, int]]:
        leases = await store.list_group_leases(group, topic=topic)
        members = set((await current_holders(store, leases, SystemLoopClock().now_ms())).values())
        if members:
            many = f"{len(members)} consumer{'s' * (len(members) != 1)}"
            raise Failure(
                f"group {group!r} reads {topic!r} with {many}: stop them first (the lease of a killed one expires "
                f"after {LEASE_S:.0f} s)",
                Exit.PROBLEM,
            )
        chosen = partitions or [row.partition_id for row in await store.list_partitions(topic)]
        wanted = await resolve_offsets(read_context.reader, topic, list(chosen), spec)
        return wanted, await GroupOffsets(store).reset(group, topic, wanted)

    wanted, offsets = run_reading(reload(), reset)
    if as_json:
        print_json({"group": group, "topic": topic, "offsets": offsets})
    else:
        for number, offset in sorted(offsets.items()):
            moved = "" if offset == wanted[number] else f", the first retained offset: {wanted[number]} is deleted"
            click.echo(f"{group} continues {topic}/{number} at {offset}{moved}")


@click.command("delete", short_help="Delete a group and its committed offsets.")
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@settings_options
@json_option
def delete_command(group: str, yes: bool, reload: Callable[[], Settings], as_json: bool) -> None:
    """Delete GROUP and its committed offsets. Active consumers start again from the beginning.

    \b
    Example:
      astha groups delete billing --yes
    """
    confirm(f"this deletes group {group} with its committed offsets", yes)
    with_store(reload(), lambda store: store.delete_consumer_group(group))
    if as_json:
        print_json({"deleted": group})
    else:
        click.echo(f"deleted {group}")


def run_reading(settings: Settings, work: Callable[[MetadataStore, ReadContext], Awaitable[T]]) -> T:
    """Runs a one-off command with a registry and a reader that does not follow it."""

    async def run() -> T:
        clock = SystemLoopClock()
        url = settings.registry.url.get_secret_value()
        store = await open_store(url, settings=settings.registry.store, clock=clock)
        try:
            async with open_read_context(context(settings, store, clock), settings, follow=False) as read_context:
                return await work(store, read_context)
        finally:
            await store.close()

    with progress("waiting for the registry", quiet=True):
        return asyncio.run(run())


def _view(lag: PartitionLag) -> dict[str, object]:
    return {
        "topic": lag.topic, "partition": lag.partition_id, "committed": lag.committed, "start": lag.start,
        "end": lag.end, "lag": lag.lag, "lost": lag.lost, "committed_at": lag.committed_at,
    }  # fmt: skip


def _print(lags: list[PartitionLag]) -> None:
    header = ("topic", "partition", "committed", "start", "end", "lag", "lost", "committed at")
    rows = [
        [lag.topic, str(lag.partition_id), "-" if lag.committed is None else str(lag.committed), str(lag.start),
         str(lag.end), f"{lag.lag:,}", f"{lag.lost:,}",
         "-" if lag.committed_at is None else time_text(lag.committed_at)]
        for lag in lags
    ]  # fmt: skip
    print_rows(header, rows, right=header[1:7])
