"""Code in documents: which blocks tests run, and which are only read.

Commands of `astha` in any document are parsed as the program would; YAML and JSON are parsed too, settings and
subscriptions are read, and Python imports what exists.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import textwrap
from pathlib import Path

import pytest
import yaml

from astha.routing.subscriptions import read_subscriptions
from astha.settings import Settings, load_settings
from tests.code_blocks import code_blocks
from tests.unit.astha.cli.command_tree import parse
from tests.unit.test_docs import DOCUMENTS, ROOT

RUN = {
    "docs/how-to/python.md": "tests/integration/components/api/test_python_page.py",
    "docs/how-to/query.md": "tests/integration/docs/test_query.py",
    "docs/tutorial.md": "tests/integration/docs/test_tutorial.py",
    "docs/how-to/write-a-component.md": "tests/integration/astha/test_writing_a_component.py",
    "docs/parts/fanout.md": "tests/unit/components/lib/change_formats/test_documented_examples.py",
    "docs/reference/segment-format.md": "tests/unit/components/lib/streams/format/test_example.py",
}
"""Documents whose blocks a test runs or compares, and the test."""

_COMMAND = re.compile(r"^(?:\s*)(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(astha .*)$", re.MULTILINE)
_COMMENT = re.compile(r"\s+#.*$")
_SHELL_OPERATOR = re.compile(r"\s(?:[|<>&]|2>)|;")
_USAGE = re.compile(r"\[--|\bOFFSET\b")
"""Texts that show how a command is written, with placeholders that it would refuse."""


def commands(document: Path) -> list[str]:
    """Returns the command lines in indented and fenced blocks. A comment or another program ends one."""
    text = (ROOT / document).read_text()
    fenced = "\n".join(
        block.text for block in code_blocks(ROOT / document) if block.language in ("shell", "sh", "bash")
    )
    indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
    return command_lines(f"{fenced}\n{indented}")


def command_lines(text: str) -> list[str]:
    lines = [_SHELL_OPERATOR.split(_COMMENT.sub("", line))[0].strip() for line in _COMMAND.findall(text)]
    return [line for line in lines if _USAGE.search(line) is None]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_commands_are_accepted(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ASTHA_CONFIG", "ASTHA_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    for line in commands(document):
        arguments = shlex.split(line)[1:]
        for file in (one for one in arguments if re.fullmatch(r"[\w-]+\.(csv|parquet|jsonl|txt|yaml)", one)):
            (tmp_path / file).touch()
        parse(arguments)


def test_commands_are_found() -> None:
    assert "astha insert shop.orders orders-1.csv" in commands(Path("docs/tutorial.md"))
    assert sum(len(commands(document)) for document in DOCUMENTS) > 50


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_data_can_be_parsed(document: Path) -> None:
    for block in code_blocks(ROOT / document):
        if block.language in ("yaml", "json"):
            list(yaml.safe_load_all(block.text))


def python_blocks() -> list[tuple[str, str]]:
    """Returns those that no test runs, with their documents."""
    return [
        (str(document), block.text)
        for document in DOCUMENTS
        for block in code_blocks(ROOT / document)
        if block.language == "python" and str(document) not in RUN
    ]


@pytest.mark.parametrize(("document", "text"), python_blocks())
def test_python_that_is_not_run_can_be_parsed_and_imports_what_exists(document: str, text: str) -> None:
    code: ast.Module = compile(text, document, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for node in ast.walk(code):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_settings_and_subscriptions_are_accepted(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ASTHA_")]:
        monkeypatch.delenv(name)
    for block in code_blocks(ROOT / document):
        if block.language != "yaml":
            continue
        text = textwrap.dedent(block.text)
        found = yaml.safe_load(text)
        file = tmp_path / "found.yaml"
        file.write_text(text)
        if isinstance(found, dict) and found.keys() <= Settings.model_fields.keys():
            load_settings(file)
        elif isinstance(found, dict) and set(found) == {"components"}:
            assert read_subscriptions(file)


@pytest.mark.parametrize(("document", "test"), RUN.items())
def test_the_test_reads_the_document(document: str, test: str) -> None:
    assert Path(document).name in (ROOT / test).read_text()
