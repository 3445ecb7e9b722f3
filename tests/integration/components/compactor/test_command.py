"""`astha compaction`: output, effects and exit codes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from astha.cli.root import main
from astha.redaction import Redactor
from astha.subscribers.context import LakeSettings
from components.compactor.merge import MergeFailed, merge
from components.compactor.settings import CompactorSettings
from components.compactor.spark.executor_protocol import Executor, SessionProblem
from components.lib.lake.storage.locations import parse
from registry.connect import open_store
from registry.inputs import CompactionDraft
from tests.doubles.merging import LocalExecutor, ScriptedExecutor
from tests.integration.astha.processes import Astha
from tests.integration.components.compactor.harness import Bench
from tests.poison import HANGS
from tests.waiting import eventually_now

T = TypeVar("T")


class Terminal:
    def __init__(self, url: str, warehouse: Path) -> None:
        self.url, self.warehouse = url, warehouse

    def on_bench(self, work: Callable[[Bench], Awaitable[T]]) -> T:
        """Runs the command with its own store, as another process would."""

        async def run() -> T:
            store = await open_store(self.url)
            bench = Bench(store, self.warehouse)
            table = await store.get_table("shop", "orders")
            if table is None:
                await bench.create()
            else:
                bench.table = table
            try:
                return await work(bench)
            finally:
                await store.close()

        return asyncio.run(run())

    def __call__(self, *arguments: str) -> Result:
        around = ["--registry", self.url, "--set", f"lake.warehouse={self.warehouse}"]
        return CliRunner().invoke(main, ["compaction", *arguments, *around])

    def answer(self, *arguments: str, code: int = 0) -> Any:
        done = self(*arguments, "--json")
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)


@pytest.fixture
def terminal(url: str, warehouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.chdir(tmp_path)
    made = Terminal(url, warehouse)
    made.on_bench(lambda bench: bench.insert(files=6))
    return made


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> list[Executor]:
    """The executor of `run`: the real merge, unless a test replaces it."""
    chosen: list[Executor] = [LocalExecutor(merge)]

    def opened(_settings: CompactorSettings, _lake: LakeSettings, _redact: Redactor) -> Executor:
        return chosen[0]

    monkeypatch.setattr("components.compactor.spark.executor.open_executor", opened)
    return chosen


def test_explain_plan_run_and_count(terminal: Terminal, executor: list[Executor]) -> None:
    (partition,) = terminal.answer("explain", "shop.orders")["partitions"]
    assert (partition["small_files"], partition["status"], partition["rule"]) == (6, "waiting", "many small files")
    plan = terminal.answer("run", "shop.orders", "--dry-run")
    assert [one["input_files"] for one in plan["plans"]] == [6]
    assert terminal.answer("list") == []
    ids = terminal.on_bench(Bench.ids)
    (outcome,) = terminal.answer("run", "shop.orders", "--strategy", "binpack")["outcomes"]
    assert (outcome["status"], outcome["input_files"], outcome["output_files"]) == ("done", 6, 1)
    assert terminal.on_bench(Bench.ids) == ids
    terminal.on_bench(Bench.require_tidy)
    (row,) = terminal.answer("list", "shop.orders", "--status", "done")
    assert (row["trigger"], row["strategy"], row["explanation"]["rule"]) == ("manual", "binpack", "requested")
    (saved,) = terminal.answer("savings")
    assert (saved["files_saved"], saved["row_count"]) == (5, 18)
    assert terminal.answer("run", "shop.orders")["outcomes"] == []
    (partition,) = terminal.answer("explain", "shop.orders")["partitions"]
    assert partition["status"] == "fine"


def test_the_output_for_a_terminal(terminal: Terminal, executor: list[Executor]) -> None:
    assert "no decisions yet" in terminal("list").output
    assert "no compactions yet" in terminal("savings").output
    assert "6" in terminal("run", "shop.orders", "--dry-run").output
    done = terminal("run", "shop.orders")
    assert done.exit_code == 0
    assert "done" in done.output
    for arguments in (["list"], ["savings"], ["explain", "shop.orders"]):
        assert "shop.orders" in terminal(*arguments).output
    assert "no partition has two small files" in terminal("run", "shop.orders").output


def test_a_file_that_was_left_out_is_explained(terminal: Terminal, executor: list[Executor]) -> None:
    bad = terminal.on_bench(lambda bench: bench.store.list_files(bench.table.id))[0]
    parse(bad.file_path).path.write_bytes(HANGS)
    (outcome,) = terminal.answer("run", "shop.orders")["outcomes"]
    assert (outcome["status"], outcome["input_files"], outcome["left_out"][0]["path"]) == ("done", 5, bad.file_path)
    (partition,) = terminal.answer("explain", "shop.orders")["partitions"]
    (file,) = partition["left_out"]
    assert (file["path"], "has 24 bytes" in file["reason"]) == (bad.file_path, True)
    assert f"{bad.file_path} has 24 bytes" in terminal("explain", "shop.orders").output


def test_a_missing_partition(terminal: Terminal, executor: list[Executor]) -> None:
    done = terminal("run", "shop.orders", "--partition", "nosuch=1")
    assert done.exit_code == 1  # as for a table
    assert "shop.orders has no partition 'nosuch=1'" in done.output
    assert terminal("run", "shop.orders", "--partition", "", "--dry-run").exit_code == 0


def test_a_requested_strategy_is_named_as_the_reason(terminal: Terminal, executor: list[Executor]) -> None:
    (outcome,) = terminal.answer("run", "shop.orders")["outcomes"]
    assert outcome["strategy"] == "binpack"
    assert "requested" not in outcome["why"]
    assert "too small to keep" in outcome["why"]


def test_the_owner_of_another_claim_is_named(terminal: Terminal, executor: list[Executor]) -> None:
    async def claim(bench: Bench) -> None:
        draft = CompactionDraft(table_id=bench.table.id, table_name="shop.orders", rule="many small files")
        await bench.store.begin_compaction(draft, operation_id="daemon", owner="the daemon", stale_after_ms=60_000)

    terminal.on_bench(claim)
    done = terminal("run", "shop.orders")
    assert done.exit_code == 1
    assert "the daemon" in done.output
    (running,) = terminal.answer("cancel", "shop.orders")
    assert (running["status"], running["cancel_requested"]) == ("running", True)
    assert "cancelling" in terminal("list").output
    (partition,) = terminal.answer("explain", "shop.orders")["partitions"]
    assert partition["status"] == "running"


@pytest.mark.parametrize(("error", "code"), [(SessionProblem("no Java: install it"), 3), (MergeFailed("bad file"), 1)])
def test_exit_codes_of_failures(terminal: Terminal, executor: list[Executor], error: Exception, code: int) -> None:
    executor[0] = ScriptedExecutor(error)
    done = terminal("run", "shop.orders")
    assert done.exit_code == code
    assert str(error) in done.output


def test_a_missing_table(terminal: Terminal) -> None:
    for arguments in (["explain", "shop.none"], ["run", "shop.none"], ["cancel", "shop.none"], ["list", "shop.none"]):
        done = terminal(*arguments)
        assert (done.exit_code, "shop.none" in done.output) == (1, True), done.output


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(sqlite_url: str, warehouse: Path, tmp_path: Path) -> None:
    """On real Spark, while its session starts or its task runs."""
    terminal = Terminal(sqlite_url, warehouse)
    files = terminal.on_bench(lambda bench: bench.insert(files=6))
    environment = Astha(tmp_path, sqlite_url, {"ASTHA_LAKE__WAREHOUSE": str(warehouse)}).environment
    command = [sys.executable, "-m", "astha.cli", "compaction", "run", "shop.orders"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:

        async def running(bench: Bench) -> bool:
            return bool(await bench.store.list_compactions(statuses=["running"]))

        eventually_now(lambda: terminal.on_bench(running), "a running compaction")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said

    async def look(bench: Bench) -> list[str]:
        await bench.require_tidy()
        assert await bench.store.list_files(bench.table.id) == files
        return [row.status for row in await bench.decisions()]

    assert terminal.on_bench(look) == ["aborted"]
