"""`astha topics`, `groups`, `produce` and `consume`, on both databases."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from astha.cli import main
from components.commands.topics.cli import topics_commands
from components.commands.topics.consume import consume_command
from components.commands.topics.groups import groups_commands
from components.commands.topics.produce import produce_command
from registry.contract import MetadataStore
from registry.json_text import parse_json
from tests.fixtures.databases import Backend


class Shell:
    def __init__(self, url: str, warehouse: Path) -> None:
        self._options = ["--registry", url, "--set", f"lake.warehouse={warehouse}"]

    async def __call__(self, command: click.Command, *arguments: str, stdin: bytes | None = None) -> Result:
        line = [*arguments, *self._options]
        return await asyncio.to_thread(CliRunner().invoke, command, line, input=stdin)

    async def json(self, command: click.Command, *arguments: str, stdin: bytes | None = None) -> Any:
        result = await self(command, *arguments, "--json", stdin=stdin)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    async def records(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        result = await self(consume_command, topic, "--json", *arguments)
        assert result.exit_code == 0, result.output
        return [json.loads(line) for line in result.stdout.splitlines()]

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "astha.cli", *arguments, *self._options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def shell(url: str, warehouse: Path) -> Shell:
    return Shell(url, warehouse)


async def test_the_life_cycle_of_a_topic(shell: Shell, store: MetadataStore) -> None:
    made = await shell(topics_commands, "create", "orders", "--partitions", "2", "--retention", "7d")
    assert made.output == "created orders with 2 partitions; records are kept for 7 days\n"
    again = await shell(topics_commands, "create", "orders")
    assert again.exit_code == 1
    assert not (await shell.json(topics_commands, "create", "orders", "--if-not-exists"))["created"]
    altered = await shell(topics_commands, "alter", "orders", "--retention-bytes", "10MiB", "--property", "owner=me")
    assert altered.output == "orders keeps records for 7 days, up to 10.0 MiB per partition\n"
    altered = await shell(topics_commands, "alter", "orders", "--retention", "forever", "--property", "owner=")
    topic = await store.get_topic("orders")
    assert topic is not None
    assert (topic.retention_ms, parse_json(topic.config)) == (None, {"retention.bytes": 10 << 20})
    await shell(produce_command, "orders", stdin=b"a\nb\nc\n")
    described = await shell.json(topics_commands, "describe", "orders")
    assert [(row["start"], row["end"], row["segments"]) for row in described["partitions"]] == [(0, 2, 1), (0, 1, 1)]
    assert "orders" in (await shell(topics_commands, "list")).output
    assert (await shell(topics_commands, "delete", "orders")).exit_code == 2  # not confirmed
    assert (await shell(topics_commands, "delete", "orders", "--yes")).exit_code == 0
    assert await store.list_topics() == []
    missing = await shell(topics_commands, "describe", "orders")
    assert (missing.exit_code, "astha topics list" in missing.output) == (1, True)


async def test_produced_records_are_consumed(shell: Shell, store: MetadataStore) -> None:
    await store.create_topic("orders", 3)
    lines = b"".join(b"%d\n" % number for number in range(3_000))
    report = await shell.json(produce_command, "orders", stdin=lines)
    assert (report["records"], report["partitions"]) == (3_000, {"0": 1_000, "1": 1_000, "2": 1_000})
    result = await shell(consume_command, "orders")
    assert sorted(map(int, result.stdout.splitlines())) == list(range(3_000))
    records = await shell.records("orders", "--partition", "1", "--from", "10", "--to", "13")
    assert [(record["offset"], record["value"]) for record in records] == [(10, "31"), (11, "34"), (12, "37")]
    assert len(await shell.records("orders", "-n", "7")) == 7
    assert len(await shell.records("orders", "--from", "-1h")) == 3_000
    assert await shell.records("orders", "--from", "2199-01-01") == []
    assert await shell.records("orders", "--from", "latest") == []


async def test_keys_headers_times_and_bytes_round_trip(shell: Shell, store: MetadataStore) -> None:
    await store.create_topic("orders", 4)
    await store.create_topic("copy", 4)
    lines = [
        {"key": "eu", "value": "one", "headers": {"h": "x", "n": None}, "timestamp": 1_700_000_000_000},
        {"key": "eu", "value": None},
        {"value_base64": "/wA=", "partition": 3},
    ]
    stdin = b"\n".join(json.dumps(line).encode() for line in lines)
    await shell.json(produce_command, "orders", "--json-lines", stdin=stdin)
    first = await shell.records("orders")
    assert len({record["partition"] for record in first if record["key"] == "eu"}) == 1
    text = b"\n".join(json.dumps(record).encode() for record in first)
    await shell.json(produce_command, "copy", "--json-lines", stdin=text)
    assert await shell.records("copy") == first
    keyed = await shell(produce_command, "orders", "--key-separator", ":", "--partition", "0", stdin=b"k:v\nplain")
    assert keyed.exit_code == 0, keyed.output
    shown = await shell(consume_command, "orders", "--partition", "0", "--key-separator", "=")
    assert shown.stdout.splitlines()[-2:] == ["k=v", "=plain"]


async def test_groups_resume_and_are_reset(shell: Shell, store: MetadataStore) -> None:
    await store.create_topic("orders", 1)
    await shell.json(produce_command, "orders", stdin=b"".join(b"%d\n" % number for number in range(10)))
    first = await shell.records("orders", "--group", "billing", "-n", "4")
    lag = await shell.json(groups_commands, "lag", "billing")
    assert (lag["lag"], lag["partitions"][0]["committed"]) == (6, 4)
    rest = await shell.records("orders", "--group", "billing")
    assert [record["offset"] for record in first + rest] == list(range(10))
    await store.register_agent("c", "local")
    (lease,) = await store.acquire_group_leases("billing", [("orders", 0)], "c", 10**12)
    refused = await shell(groups_commands, "reset", "billing", "orders", "--to", "7")
    assert (refused.exit_code, "1 consumer: stop" in refused.stderr) == (1, True)
    await store.release_group_lease(lease)
    await shell.json(groups_commands, "reset", "billing", "orders", "--to", "7")
    assert [record["offset"] for record in await shell.records("orders", "--group", "billing")] == [7, 8, 9]
    beyond = await shell(groups_commands, "reset", "billing", "orders", "--to", "99999999")
    assert beyond.exit_code == 2
    assert "orders/0 has offsets from 0 on and ends at 10: nothing was changed" in beyond.stderr
    unknown = await shell(groups_commands, "reset", "other", "orders", "--to", "11")
    assert unknown.exit_code == 2
    assert [row["group_id"] for row in (await shell.json(groups_commands, "list"))["groups"]] == ["billing"]
    assert (await shell.json(groups_commands, "lag", "billing"))["lag"] == 0
    assert (await shell.json(groups_commands, "reset", "billing", "orders", "--to", "10"))["offsets"] == {"0": 10}
    assert (await shell.json(groups_commands, "list"))["groups"][0]["group_id"] == "billing"
    assert (await shell(groups_commands, "lag", "unknown")).exit_code == 1
    refused = await shell(groups_commands, "delete", "billing")
    assert (refused.exit_code, refused.stderr) == (
        2, "astha: this deletes group billing with its committed offsets: repeat with --yes to confirm\n",
    )  # fmt: skip
    assert len((await shell.json(groups_commands, "list"))["groups"]) == 1
    assert (await shell(groups_commands, "delete", "billing", "--yes")).exit_code == 0
    assert (await shell.json(groups_commands, "list"))["groups"] == []


async def test_invalid_offsets_are_reported(shell: Shell, store: MetadataStore) -> None:
    await store.create_topic("orders", 1)
    await shell.json(produce_command, "orders", stdin=b"a\nb\n")
    await shell.json(produce_command, "orders", stdin=b"c\n")
    beyond = await shell(consume_command, "orders", "--from", "9")
    assert (beyond.exit_code, "the next record gets 3" in beyond.stderr) == (1, True)
    trimmed = await shell.json(topics_commands, "trim", "orders", "0", "--before", "2", "--yes")
    assert (trimmed["segments"], trimmed["start"]) == (1, 2)
    old = await shell(consume_command, "orders", "--from", "0")
    assert (old.exit_code, "--skip-lost" in old.stderr) == (1, True)
    reset = await shell(groups_commands, "reset", "g", "orders", "--to", "0")
    assert (reset.exit_code, reset.stdout) == (
        0, "g continues orders/0 at 2, the first retained offset: 0 is deleted\n",
    )  # fmt: skip
    skipping = await shell(consume_command, "orders", "--from", "0", "--skip-lost")
    assert (skipping.stdout, "2 records were deleted" in skipping.stderr) == ("c\n", True), skipping.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["consume", "nothing"], 1, "nothing"),
        (["consume", "orders", "--partition", "7"], 1, "no partition 7"),
        (["consume", "orders", "--from", "soon"], 2, "write earliest, latest"),
        (["consume", "orders", "--follow", "--to", "3"], 2, "omit --to"),
        (["topics", "create", "more", "--retention", "long"], 2, "write 90s, 15m"),
        (["topics", "create", "more", "--property", "x"], 2, "NAME=VALUE"),
        (["produce", "nothing"], 1, "astha topics create"),
    ],
)
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_mistakes_are_explained(
    shell: Shell, store: MetadataStore, arguments: list[str], code: int, message: str
) -> None:
    await store.create_topic("orders", 1)
    commands = {"consume": consume_command, "topics": topics_commands, "produce": produce_command}
    result = await shell(commands[arguments[0]], *arguments[1:], stdin=b"")
    assert (result.exit_code, message in result.stderr) == (code, True), result.output


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_an_invalid_line_is_reported_with_the_records_written_before(shell: Shell, store: MetadataStore) -> None:
    await store.create_topic("orders", 1)
    result = await shell(produce_command, "orders", "--json-lines", stdin=b'{"value": "a"}\n{"valu": 1}\n')
    assert (result.exit_code, "line 2" in result.stderr, "0 records" in result.stderr) == (2, True, True)


async def test_a_following_consumer_in_another_process(shell: Shell, store: MetadataStore, backend: Backend) -> None:
    """It prints records produced after its start, and commits them when it is interrupted."""
    await store.create_topic("orders", 2)
    process = shell.spawn("consume", "orders", "--follow", "--group", "g", "--json")
    assert process.stdout is not None
    try:
        read_context = asyncio.to_thread(_first_lines, process, 6)
        task = asyncio.ensure_future(read_context)
        for number in range(3):
            await shell.json(produce_command, "orders", stdin=b"%d\n%d\n" % (2 * number, 2 * number + 1))
        seen = [json.loads(line) for line in await asyncio.wait_for(task, 60)]
        assert sorted(int(record["value"]) for record in seen) == list(range(6))
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(asyncio.to_thread(process.wait), 60)
        assert process.returncode == 130
        committed = {row.partition_id: row.committed_offset for row in await store.get_consumer_offsets("g")}
        assert committed == {0: 3, 1: 3}
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
async def test_two_consumers_of_a_group_read_everything_once(shell: Shell, store: MetadataStore) -> None:
    """Neither ends before the group has committed everything; each record is printed by one of them."""
    await store.create_topic("orders", 4)
    await shell.json(produce_command, "orders", stdin=b"".join(b"%d\n" % number for number in range(400)))
    results = await asyncio.gather(*(_output(shell.spawn("consume", "orders", "--group", "g")) for _ in range(2)))
    assert sorted(int(line) for lines in results for line in lines) == list(range(400))
    assert (await shell.json(groups_commands, "lag", "g"))["lag"] == 0


async def _output(process: subprocess.Popen[bytes]) -> list[bytes]:
    try:
        out, error = await asyncio.wait_for(asyncio.to_thread(process.communicate), 60)
    finally:
        process.kill()
    assert process.returncode == 0, error
    return out.splitlines()


def _first_lines(process: subprocess.Popen[bytes], count: int) -> list[bytes]:
    assert process.stdout is not None
    return [process.stdout.readline() for _ in range(count)]


def test_the_commands_are_found() -> None:
    shown = CliRunner().invoke(main, ["--help"]).output
    for name in ("consume", "groups", "produce", "topics"):
        assert f"\n  {name} " in shown
