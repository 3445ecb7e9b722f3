from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import time

from click.testing import CliRunner, Result
from prometheus_client.parser import text_string_to_metric_families

from astha.cli.exit_codes import Exit
from astha.cli.root import main
from tests.integration.components.commands.verify.conftest import Stage, path_of


async def call(stage: Stage, *arguments: str) -> Result:
    around = ["--registry", stage.url, "--set", f"lake.warehouse={stage.lake.warehouse}"]
    return await asyncio.to_thread(CliRunner().invoke, main, ["verify", *arguments, *around])


async def test_equal(stage: Stage) -> None:
    await stage.insert(await stage.create())
    await stage.commit()
    done = await call(stage, "--checksums")
    assert done.exit_code == Exit.OK, done.output
    assert "shop.orders  equal" in done.stdout
    assert "equal: 1 table" in done.stdout


async def test_differences(stage: Stage) -> None:
    table = await stage.create()
    (file,) = await stage.insert(table)
    await stage.commit()
    path_of(file).unlink()
    await stage.insert(table)
    done = await call(stage, "shop.orders", "--files")
    assert done.exit_code == Exit.PROBLEM
    assert "shop.orders  different" in done.stdout
    assert f"    {file.file_path}\n" in done.stdout
    assert "    repair: `astha run`: it catches up by itself" in done.stdout
    assert "different: 1 of 1 table, 2 differences" in done.stdout

    done = await call(stage, "--files", "--json")
    assert done.exit_code == Exit.PROBLEM
    shown = json.loads(done.stdout)
    assert shown["equal"] is shown["tables"][0]["equal"] is False
    assert {found["kind"] for found in shown["tables"][0]["differences"]} == {
        "registered, but not in Iceberg",
        "missing in storage",
    }


def metrics_in(path: Path) -> dict[str, float]:
    families = text_string_to_metric_families(path.read_text())
    return {sample.name.removeprefix("astha_verify_"): sample.value for family in families for sample in family.samples}


async def test_metrics(stage: Stage, tmp_path: Path) -> None:
    """A verification that could not be completed leaves the file as it is."""
    path = tmp_path / "verify.prom"
    await stage.insert(await stage.create())
    await stage.commit()
    began = time()
    assert (await call(stage, "--metrics", str(path))).exit_code == Exit.OK
    found = metrics_in(path)
    assert began <= found.pop("last_run_timestamp_seconds") <= time()
    assert found.pop("duration_seconds") > 0
    assert found == {"tables": 1, "different_tables": 0, "differences": 0}

    stage.execute("UPDATE tables SET row_count = 17")
    assert (await call(stage, "--metrics", str(path))).exit_code == Exit.PROBLEM
    found = metrics_in(path)
    assert (found["different_tables"], found["table_differences"]) == (1, found["differences"])
    assert found["differences"] >= 1

    unreachable = ["--set", "lake.catalog.type=rest", "--set", "lake.catalog.uri=http://127.0.0.1:9/"]
    assert (await call(stage, "--metrics", str(path), *unreachable)).exit_code == Exit.UNAVAILABLE
    assert metrics_in(path) == found


async def test_metrics_that_can_not_be_written(stage: Stage, tmp_path: Path) -> None:
    await stage.insert(await stage.create())
    await stage.commit()
    done = await call(stage, "--metrics", str(tmp_path / "nowhere" / "verify.prom"))
    assert done.exit_code == Exit.UNAVAILABLE
    assert "equal: 1 table" in done.stdout
    assert "the metrics can't be written" in done.stderr


async def test_statistics_are_repaired(stage: Stage) -> None:
    await stage.insert(await stage.create())
    await stage.commit()
    stage.execute("UPDATE tables SET row_count = 17")
    assert (await call(stage)).exit_code == Exit.PROBLEM
    done = await call(stage, "--repair-statistics")
    assert done.exit_code == Exit.OK
    assert "statistics recounted" in done.stdout
    assert (await call(stage)).exit_code == Exit.OK


async def test_an_unknown_table(stage: Stage) -> None:
    done = await call(stage, "shop.nothing")
    assert done.exit_code == Exit.USAGE
    assert "there is no table shop.nothing" in done.stderr
    assert (await call(stage, "nothing")).exit_code == Exit.USAGE


async def test_a_catalog_that_does_not_answer(stage: Stage) -> None:
    await stage.insert(await stage.create())
    unreachable = ["--set", "lake.catalog.type=rest", "--set", "lake.catalog.uri=http://127.0.0.1:9/"]
    done = await call(stage, *unreachable)
    assert done.exit_code == Exit.UNAVAILABLE
    assert "could not be verified" in done.stderr
