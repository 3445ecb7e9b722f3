"""The imports of help and of calls to the daemon: no stage of the daemon, no component."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from astha.cli import main, plugins
from astha.cli.command_help import SHORT_HELP
from components.command_help import SHORT_HELP as COMPONENTS_SHORT_HELP
from tests.integration.astha.processes import ROOT

DATABASES = {"aiosqlite", "alembic", "psycopg", "sqlalchemy"}
COMPONENTS = {"numpy", "obstore", "pyarrow", "pyiceberg", "pyspark"}
SERVER = {"aiohttp", "prometheus_client", "structlog"}
SETTINGS = {"pydantic", "pydantic_settings", "yaml"}
HEAVY_FOR_HELP = DATABASES | COMPONENTS | SERVER | SETTINGS | {"msgspec", "rich"}
STAGES = {"astha.daemon", "astha.lanes", "astha.routing", "astha.server", "astha.sources", "astha.subscribers"}

MOST_MODULES_FOR_HELP = 260
"""About 190 to 220 with CPython 3.11; click alone brings about 60, `importlib.metadata` as many."""

MOST_MODULES_FOR_PLUGIN_HELP = 360
"""About 200 to 300 with CPython 3.11: some import asyncio, and msgspec for the types of their options."""

RUN = """
import json, sys
from astha.cli import main
try:
    main(prog_name="astha")
finally:
    sys.stderr.write(json.dumps(sorted(sys.modules)))
"""


def modules_after(directory: Path, *arguments: str, **environment: str) -> set[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ASTHA_")}
    ended = subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=directory, env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return set(json.loads(ended.stderr[ended.stderr.index("[") :]))


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "--help"] for name in sorted(SHORT_HELP))],
    ids=" ".join,
)
def test_help_imports_no_heavy_package(tmp_path: Path, arguments: list[str]) -> None:
    modules = modules_after(tmp_path, *arguments)
    assert packages(modules) & HEAVY_FOR_HELP == set()
    assert modules & STAGES == set()
    assert len(modules) <= MOST_MODULES_FOR_HELP


@pytest.mark.parametrize("name", sorted(COMPONENTS_SHORT_HELP))
def test_help_of_the_components_commands_imports_no_heavy_package(tmp_path: Path, name: str) -> None:
    modules = modules_after(tmp_path, name, "--help")
    assert packages(modules) & (HEAVY_FOR_HELP - {"msgspec"}) == set()
    assert modules & STAGES == set()
    assert len(modules) <= MOST_MODULES_FOR_PLUGIN_HELP


@pytest.mark.parametrize("url", ["sqlite:///registry.db", "postgresql://astha:open-sesame@db.example/registry"])
def test_status_imports_settings_but_no_stage_and_no_database(tmp_path: Path, url: str) -> None:
    modules = modules_after(tmp_path, "status", "--server", "http://127.0.0.1:1", ASTHA_REGISTRY=url)
    assert "astha.settings" in modules
    assert packages(modules) & (DATABASES | COMPONENTS | SERVER) == set()
    assert modules & STAGES == set()


class TestShortHelp:
    """The lines that `astha --help` shows without importing the commands are the commands' own."""

    def test_of_our_commands(self) -> None:
        context = click.Context(main)
        assert set(main.places) == set(SHORT_HELP), "add the command's line to astha/cli/command_help.py"
        for name, line in SHORT_HELP.items():
            command = main.get_command(context, name)
            assert command is not None
            assert command.get_short_help_str(limit=200) == line

    def test_of_the_components_commands(self) -> None:
        points = {name: point for name, point in plugins.found().items() if point.module.startswith("components.")}
        lines = {name: point.load().get_short_help_str(limit=200) for name, point in points.items()}
        assert lines == COMPONENTS_SHORT_HELP, "correct components/command_help.py"

    @pytest.mark.parametrize("name", ["compaction", "groups", "iceberg", "snapshot", "tables", "topics"])
    def test_of_a_lazy_group(self, name: str) -> None:
        group = plugins.found()[name].load()
        context = click.Context(group)
        for each in group.list_commands(context):
            assert group.get_command(context, each).get_short_help_str() == group.line_in_help(context, each)
