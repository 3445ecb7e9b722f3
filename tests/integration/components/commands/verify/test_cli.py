from __future__ import annotations

import asyncio
import json

from click.testing import CliRunner, Result

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
    assert "equal: 1 tables" in done.stdout


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
    assert "different: 1 of 1 tables, 2 differences" in done.stdout

    done = await call(stage, "--files", "--json")
    assert done.exit_code == Exit.PROBLEM
    shown = json.loads(done.stdout)
    assert shown["equal"] is shown["tables"][0]["equal"] is False
    assert {found["kind"] for found in shown["tables"][0]["differences"]} == {
        "registered, but not in Iceberg",
        "missing in storage",
    }


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
