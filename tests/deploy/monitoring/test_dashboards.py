from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.monitoring.dashboards import (
    DASHBOARDS,
    ROOT,
    load,
    metrics_of,
    name_patterns_of,
    panels,
    queries,
    substituted,
)
from tests.deploy.monitoring.rules_files import promtool

UNITS = {"none", "short", "s", "bytes", "percentunit", "ops", "Bps", "rowsps"}
each = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)


def test_there_is_a_dashboard_for_each_part() -> None:
    assert [path.stem for path in DASHBOARDS] == ["components", "daemon", "lake", "streams"]
    assert Counter(load(path)["uid"] for path in DASHBOARDS).most_common(1)[0][1] == 1


@each
def test_the_file_is_what_the_program_writes(path: Path) -> None:
    place = ROOT / "deploy/monitoring/build_dashboards.py"
    specification = importlib.util.spec_from_file_location("build_dashboards", place)
    assert specification is not None
    assert specification.loader is not None
    program: Any = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "build_dashboards", program)
        specification.loader.exec_module(program)
        (dashboard,) = [one for one in program.DASHBOARDS if one.name == path.stem]
        assert path.read_text() == program.rendered(dashboard), "run `python deploy/monitoring/build_dashboards.py`"


@each
def test_ids_are_unique_and_panels_do_not_overlap(path: Path) -> None:
    every = load(path)["panels"]
    assert [number for number, count in Counter(panel["id"] for panel in every).items() if count > 1] == []
    for panel in every:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    for one, other in itertools.combinations(every, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    def apart(place: str, size: str) -> bool:
        return one[place] + one[size] <= other[place] or other[place] + other[size] <= one[place]

    return not (apart("x", "w") or apart("y", "h"))


@each
def test_every_panel_has_a_unit_a_description_and_the_chosen_data_source(path: Path) -> None:
    for panel in panels(path):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["description"].endswith((".", "!")), panel["title"]
        assert panel["targets"], panel["title"]
        assert Counter(target["refId"] for target in panel["targets"]).most_common(1)[0][1] == 1
        for target in [panel, *panel["targets"]]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@each
def test_expressions_use_only_variables_that_the_dashboard_has(path: Path) -> None:
    variables = {variable["name"] for variable in load(path)["templating"]["list"]}
    assert {"datasource", "group", "instance"} <= variables
    for panel in panels(path):
        for target in panel["targets"]:
            if "$component" in target["expr"]:
                assert "component" in variables
            assert "$" not in substituted(target["expr"]).replace('"$1"', ""), target["expr"]


def test_promtool_parses_every_expression(tmp_path: Path) -> None:
    rules = [{"record": f"panel:query{number}:now", "expr": expr} for number, (_, expr) in enumerate(queries())]
    path = tmp_path / "queries.yaml"
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", path)


def test_the_metrics_of_an_expression() -> None:
    found = metrics_of('sum by (job) (rate(astha_a_total{x="astha_no"}[5m])) / on (job) group:astha_b:sum and up == 0')
    assert found == {"astha_a_total", "group:astha_b:sum", "up"}
    assert metrics_of("a * on (job, instance) group_left (group, source) astha_daemon_info") == {"astha_daemon_info"}
    assert name_patterns_of('{__name__=~"astha_.+_x"} == 0') == {"astha_.+_x"}
