"""What MkDocs does beyond its configuration: pages made from code, the list of decisions, links out of `docs/`."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site import cli_page, http_page

_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists every decision, by number."""
    decisions = sorted(path.name for path in Path(config.docs_dir, "decisions").glob("*.md"))
    config.nav = _with_decisions(config.nav, decisions)
    return config


def _with_decisions(nav: Any, decisions: list[str]) -> Any:
    if isinstance(nav, list):
        return [_with_decisions(entry, decisions) for entry in nav]
    if isinstance(nav, dict):
        return {
            title: [f"decisions/{name}" for name in decisions]
            if entry == "decisions/"
            else _with_decisions(entry, decisions)
            for title, entry in nav.items()
        }
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made from the parser and from the OpenAPI document."""
    specification = Path(config.docs_dir, "reference", "openapi.yaml")
    for path, text in {
        "reference/cli.md": cli_page.markdown(),
        "reference/http-api.md": http_page.markdown(specification),
    }.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Replaces links to files of the repository that are not part of the site by their paths."""
    folder = posixpath.dirname(page.file.src_uri)

    def outside(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, found[2]))
        return found[0] if path.startswith("docs/") else f"{found[1]} (`{path}`)"

    return _LINK.sub(outside, markdown)
