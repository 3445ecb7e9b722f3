"""The examples in docs/parts/fanout.md are what the formats produce."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from astha.version import version
from components.lib.change_formats import FormatSettings, open_format
from tests.unit.components.lib.change_formats.examples import NOW_MS, ORIGIN, TOPIC, insert

DOCUMENT = Path(__file__).parents[5] / "docs" / "parts" / "fanout.md"
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL))


@pytest.mark.parametrize("settings", [FormatSettings(format=name) for name in ("debezium", "cloudevents", "json")])
def test_the_example_is_what_the_format_produces(settings: FormatSettings) -> None:
    value = open_format(settings, "kafka").change(insert(TOPIC), ORIGIN, NOW_MS).value
    produced = json.loads(value or b"")
    if settings.format == "debezium":
        assert produced["source"].pop("version") == version()
        produced["source"]["version"] = "0.1.0"  # not to be edited with every release
    assert json.loads(EXAMPLES[settings.format]) == produced
