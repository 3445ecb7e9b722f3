"""The commands of `astha topics`: create, list, describe, alter, trim, delete."""

from __future__ import annotations

from collections.abc import Callable

import click
import msgspec

from astha.cli.exit_codes import Exit, Failure
from astha.cli.options import json_option, settings_options
from astha.cli.output import confirm, counted, print_json, print_pairs, time_text
from astha.cli.progress import progress
from astha.cli.store import with_store
from astha.cli.table import print_rows
from astha.clock import SystemLoopClock
from astha.quantities import format_duration, format_size
from astha.settings import Settings
from components.commands.parameters import DurationParam, SizeParam
from components.lib.streams.agents.holders import current_holders
from components.lib.streams.offsets import first_retained_offset
from components.segment_store.maintenance.retention import (
    RETENTION_BYTES,
    RETENTION_RECORDS,
    RetentionPolicy,
    TopicRetention,
)
from registry.contract import MetadataStore
from registry.errors import AlreadyExists, NotFound
from registry.json_text import JsonValue, parse_json
from registry.models import Partition, Topic

_BATCH_SEGMENTS = 500
_RETENTION = (
    click.option("--retention", type=DurationParam(), help="How long to keep records: 7d, 12h, forever."),
    click.option("--retention-bytes", type=SizeParam(), help="How many bytes to keep per partition: 10GiB."),
    click.option("--retention-records", type=click.IntRange(min=0), help="How many records to keep per partition."),
    click.option(
        "--property", "entries", multiple=True, metavar="NAME=VALUE", help="Set a property of the topic; repeatable."
    ),
)


def retention_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_RETENTION):
        command = option(command)
    return command


class TopicView(msgspec.Struct, frozen=True):
    """A topic in JSON output."""

    name: str
    partitions: int
    retention_ms: int | None
    config: JsonValue
    created_at: int


class PartitionView(msgspec.Struct, frozen=True):
    partition: int
    start: int
    end: int
    segments: int
    size_bytes: int
    writer: str | None


@click.command("create", short_help="Create a topic.")
@click.argument("name", metavar="TOPIC")
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of partitions. Cannot be changed later.",
)
@retention_options
@click.option("--if-not-exists", is_flag=True, help="Succeed without a change if the topic exists.")
@settings_options
@json_option
def create_command(
    name: str,
    partitions: int,
    retention: int | None,
    retention_bytes: int | None,
    retention_records: int | None,
    entries: tuple[str, ...],
    if_not_exists: bool,
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Create TOPIC.

    \b
    Examples:
      astha topics create orders --partitions 12 --retention 7d
      astha topics create audit --retention forever --if-not-exists
    """
    config = _config({}, entries, retention_bytes, retention_records)

    async def create(store: MetadataStore) -> tuple[Topic, bool]:
        try:
            return await store.create_topic(name, partitions, retention_ms=retention, config=config), True
        except AlreadyExists:
            found = await store.get_topic(name)
            if not if_not_exists or found is None:
                raise
            return found, False

    topic, created = with_store(reload(), create)
    if as_json:
        print_json({"created": created, "topic": _view(topic)})
    else:
        many, kept = counted(topic.partition_count, "partition"), _retention_text(topic)
        click.echo(f"{'created' if created else 'exists already:'} {topic.name} with {many}; records are kept {kept}")


@click.command("list", short_help="List topics.")
@settings_options
@json_option
def list_command(reload: Callable[[], Settings], as_json: bool) -> None:
    """List topics with their partitions and retention, by name.

    \b
    Example:
      astha topics list --json
    """
    topics = with_store(reload(), lambda store: store.list_topics())
    if as_json:
        print_json({"topics": [_view(topic) for topic in topics]})
    elif not topics:
        click.echo("no topics: create one with `astha topics create`")
    else:
        rows = [[topic.name, f"{topic.partition_count:,}", _retention_text(topic)] for topic in topics]
        print_rows(("topic", "partitions", "retention"), rows, right=("partitions",))


@click.command("describe", short_help="Show a topic and its partitions.")
@click.argument("name", metavar="TOPIC")
@settings_options
@json_option
def describe_command(name: str, reload: Callable[[], Settings], as_json: bool) -> None:
    """Show TOPIC: offsets, segments, size and writer of each partition.

    \b
    Example:
      astha topics describe orders
    """

    async def look(store: MetadataStore) -> tuple[Topic, list[PartitionView]]:
        topic = await _topic(store, name)
        leases = await store.list_partition_leases(topic=name)
        partitions = await store.list_partitions(name)
        writers = await current_holders(store, leases, SystemLoopClock().now_ms())
        return topic, [await _describe_partition(store, row, writers.get(row.partition_id)) for row in partitions]

    with progress(f"reading the segments of {name}", quiet=as_json):
        topic, partitions = with_store(reload(), look)
    if as_json:
        print_json({"topic": _view(topic), "partitions": partitions})
        return
    pairs = {"topic": topic.name, "partitions": f"{topic.partition_count:,}", "retention": _retention_text(topic)}
    print_pairs({**pairs, "config": str(topic.config), "created": time_text(topic.created_at)})
    click.echo()
    header = ("partition", "start", "end", "segments", "size", "writer")
    rows = [
        [str(view.partition), str(view.start), str(view.end), f"{view.segments:,}", format_size(view.size_bytes),
         view.writer or "-"]
        for view in partitions
    ]  # fmt: skip
    print_rows(header, rows, right=header[:5])


@click.command("alter", short_help="Change a topic's retention.")
@click.argument("name", metavar="TOPIC")
@retention_options
@settings_options
@json_option
def alter_command(
    name: str,
    retention: int | None,
    retention_bytes: int | None,
    retention_records: int | None,
    entries: tuple[str, ...],
    reload: Callable[[], Settings],
    as_json: bool,
) -> None:
    """Change the retention and properties of TOPIC. Options that are not given stay; `--property NAME=` removes one.

    \b
    Examples:
      astha topics alter orders --retention 30d
      astha topics alter orders --retention forever --property retention.bytes=
    """
    given = click.get_current_context().get_parameter_source("retention")
    changes_time = given is not click.core.ParameterSource.DEFAULT

    async def alter(store: MetadataStore) -> Topic:
        topic = await _topic(store, name)
        found = parse_json(topic.config)
        config = _config(dict(found) if isinstance(found, dict) else {}, entries, retention_bytes, retention_records)
        kept = retention if changes_time else topic.retention_ms
        return await store.update_topic_config(name, config, retention_ms=kept)

    topic = with_store(reload(), alter)
    if as_json:
        print_json({"topic": _view(topic)})
    else:
        click.echo(f"{topic.name} keeps records {_retention_text(topic)}")


@click.command("trim", short_help="Delete records before an offset.")
@click.argument("name", metavar="TOPIC")
@click.argument("partition", type=click.IntRange(min=0))
@click.option("--before", "offset", type=click.IntRange(min=0), required=True, help="First offset to keep.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@settings_options
@json_option
def trim_command(
    name: str, partition: int, offset: int, yes: bool, reload: Callable[[], Settings], as_json: bool
) -> None:
    """Delete segments of PARTITION that end before an offset. The segment that contains it stays whole.

    \b
    Example:
      astha topics trim orders 3 --before 120000
    """
    confirm(f"this deletes the records of {name}/{partition} before offset {offset}", yes)

    async def trim(store: MetadataStore) -> tuple[int, int]:
        gone = await TopicRetention(store, SystemLoopClock(), _BATCH_SEGMENTS).delete_before(name, partition, offset)
        row = await store.get_partition(name, partition)
        return gone, await first_retained_offset(store, name, partition, 0 if row is None else row.high_watermark)

    with progress(f"deleting segments of {name}/{partition}", quiet=as_json):
        gone, start = with_store(reload(), trim)
    if as_json:
        print_json({"topic": name, "partition": partition, "segments": gone, "start": start})
    else:
        click.echo(f"{name}/{partition}: {gone:,} segments deleted, the first offset is {start}")


@click.command("delete", short_help="Delete a topic and its data.")
@click.argument("name", metavar="TOPIC")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@settings_options
@json_option
def delete_command(name: str, yes: bool, reload: Callable[[], Settings], as_json: bool) -> None:
    """Delete TOPIC: records, leases and committed offsets. The daemon deletes its objects after a grace period.

    \b
    Example:
      astha topics delete orders --yes
    """
    confirm(f"this deletes topic {name} with all its records", yes)
    with progress(f"deleting {name}", quiet=as_json):
        with_store(reload(), lambda store: store.delete_topic(name))
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")


async def _topic(store: MetadataStore, name: str) -> Topic:
    topic = await store.get_topic(name)
    if topic is None:
        raise NotFound(f"topic {name!r} does not exist; list topics with `astha topics list`")
    return topic


async def _describe_partition(store: MetadataStore, row: Partition, writer: str | None) -> PartitionView:
    segments = size = 0
    start = row.high_watermark
    async for segment in store.stream_segments(row.topic, row.partition_id):
        start = min(start, segment.base_offset)
        segments += 1
        size += segment.size_bytes
    return PartitionView(row.partition_id, start, row.high_watermark, segments, size, writer)


def _view(topic: Topic) -> TopicView:
    return TopicView(
        topic.name, topic.partition_count, topic.retention_ms, parse_json(topic.config), topic.created_at
    )  # fmt: skip


def _config(
    config: dict[str, JsonValue], entries: tuple[str, ...], size_bytes: int | None, records: int | None
) -> dict[str, JsonValue]:
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise Failure(f"--property {entry!r}: write NAME=VALUE", Exit.USAGE)
        if value:
            config[key] = int(value) if value.isdecimal() else value
        else:
            config.pop(key, None)
    if size_bytes is not None:
        config[RETENTION_BYTES] = size_bytes
    if records is not None:
        config[RETENTION_RECORDS] = records
    return config


def _retention_text(topic: Topic) -> str:
    try:
        policy = RetentionPolicy.of(topic)
    except ValueError as error:
        return f"everything ({error})"
    bounds = []
    if policy.ms is not None:
        bounds.append(f"for {format_duration(policy.ms)}")
    if policy.size_bytes is not None:
        bounds.append(f"up to {format_size(policy.size_bytes)} per partition")
    if policy.records is not None:
        bounds.append(f"up to {policy.records:,} records per partition")
    return ", ".join(bounds) or "forever"
