"""The reference of the daemon's HTTP API, from its OpenAPI document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def markdown(specification: Path) -> str:
    document: dict[str, Any] = yaml.safe_load(specification.read_text())
    parts = [
        "# HTTP API of the daemon",
        document["info"]["description"].strip(),
        f"[{specification.name}]({specification.name}) is the OpenAPI document, for tools that make clients.",
    ]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(f"{method.upper()} {path}", operation, document))
    return "\n\n".join(parts) + "\n"


def _operation(name: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    lines = [f"## `{name}`", "", operation["summary"], "", operation.get("description", "").strip(), ""]
    if parameters := operation.get("parameters"):
        lines += ["| parameter | in | meaning |", "|---|---|---|"]
        lines += [f"| `{one['name']}` | {one['in']} | {_in_cell(one['description'])} |" for one in parameters]
        lines.append("")
    lines += ["| response | meaning |", "|---|---|"]
    for code, response in operation["responses"].items():
        named = _resolved(response, document)
        lines.append(f"| {code} | {_in_cell(named['description'])} |")
    return "\n".join(lines)


def _resolved(node: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    found: Any = node
    if "$ref" in node:
        found = document
        for key in node["$ref"].removeprefix("#/").split("/"):
            found = found[key]
    resolved: dict[str, Any] = found
    return resolved


def _in_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
