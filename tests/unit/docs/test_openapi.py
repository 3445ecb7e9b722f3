"""docs/reference/openapi.yaml is valid, and describes the routes and the types that the daemon serves."""

from __future__ import annotations

import itertools
import re
from typing import Any

import msgspec
import pytest
import yaml
from openapi_spec_validator import validate

from astha.listener.app import Listener
from astha.listener.options import Options
from astha.server.status import StatusReport
from tests.integration.astha.processes import ROOT


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docs" / "reference" / "openapi.yaml").read_text())
    return found


def test_is_valid(document: dict[str, Any]) -> None:
    validate(document)


def served() -> set[tuple[str, str]]:
    """Returns methods and paths of the listener's routes; a choice in a path is one path for each of its values."""
    listener = Listener(Options(), lambda _: None)
    routes = listener.app().router.routes()
    found = set()
    for route in routes:
        assert route.resource is not None
        info = route.resource.get_info()
        path = info.get("formatter") or route.resource.canonical
        pattern = info.get("pattern")
        choices = re.findall(r"\(\?P<action>([^)]+)\)", pattern.pattern) if pattern is not None else []
        for values in itertools.product(*(choice.split("|") for choice in choices)):
            text = path
            for value in values:
                text = text.replace("{action}", value)
            found.add((route.method.lower(), text))
    return {(method, path) for method, path in found if method != "head"}


def test_has_every_route(document: dict[str, Any]) -> None:
    described = {(method, path) for path, methods in document["paths"].items() for method in methods}
    assert described == served()


def test_has_the_types_of_the_status(document: dict[str, Any]) -> None:
    _, schemas = msgspec.json.schema_components([StatusReport], ref_template="#/components/schemas/{name}")
    described = document["components"]["schemas"]
    assert {name: described.get(name) for name in schemas} == schemas
