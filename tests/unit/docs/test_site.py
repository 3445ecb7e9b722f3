"""The site is built without a warning, and loads nothing from another host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.integration.astha.processes import ROOT
from tests.unit.astha.cli.command_tree import all_commands

_LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
_IN_STYLE = re.compile(r"(?:@import|url\()\s*[\"']?(https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    # `--quiet` would hide warnings from `--strict` too.
    assert "Documentation built" in ended.stderr
    assert "WARNING" not in ended.stderr
    return target


class Resources(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        address = dict(attributes).get(_LOADED.get(tag, "")) or ""
        if re.match(r"(https?:)?//", address):
            self.found.append(address)


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        resources = Resources()
        resources.feed(page.read_text())
        assert resources.found == [], page
    for style in site.rglob("*.css"):
        assert _IN_STYLE.search(style.read_text()) is None, style


def test_pages_from_code_are_complete(site: Path) -> None:
    commands = (site / "reference" / "cli.html").read_text()
    for name in all_commands():
        assert f"<code>{name}</code>" in commands
    assert "/components/{name}/refresh" in (site / "reference" / "http-api.html").read_text()
    python = (site / "reference" / "python.html").read_text()
    assert "MetadataStore" in python
    assert python.count('<span class="gp">&gt;&gt;&gt;') > 30, "examples are code"
    assert "<blockquote>" not in python


def test_links_out_of_the_site_became_paths(site: Path) -> None:
    assert "deploy/monitoring/README.md" in (site / "operations" / "runbook.html").read_text()
