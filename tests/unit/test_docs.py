"""Every file, directory and module that the documents name exists, and every link leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("components/**/*.md"),
        *ROOT.glob("deploy/**/*.md"),
    ]
)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_PATH = re.compile(r"(?:[\w.-]+/)*[\w-]+\.(?:py|md|yaml|toml)(?=::|$)|(?:[\w-]+/)+(?:[\w-]+)?(?=$)")
_MODULE = re.compile(r"(?:astha|registry|components|benchmarks|tests)(?:\.[a-z_]\w*)+")
_GENERATED = {ROOT / "docs" / "reference" / name for name in ("cli.md", "http-api.md")}
"""Pages that `docs/site` writes; the build of the site checks links to them."""

_SOURCES = (".cfg", ".env", ".json", ".py", ".sh", ".service", ".toml", ".yaml", ".yml")
_NAMED_PAGE = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|yaml|svg)(?:#[\w-]+)?")
_TEST_DIRECTORIES = ("contracts", "e2e", "faults", "fixtures", "fuzz", "integration", "properties", "unit")


def _exists(name: str) -> bool:
    return any((ROOT / start / name).exists() for start in ("", "tests", "docs", "docs/decisions"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_paths_exist(document: Path) -> None:
    text = (ROOT / document).read_text()
    named = {found[0] for code in _CODE.findall(text) if (found := _PATH.match(code)) and "/" in found[0]}
    ours = {name for name in named if name.split("/")[0] in {*_TEST_DIRECTORIES, "astha", "registry", "components",
            "tests", "benchmarks", "docs", "deploy"}}  # fmt: skip
    assert {name for name in ours if not _exists(name)} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_modules_exist(document: Path) -> None:
    text = (ROOT / document).read_text()
    named = {found[0] for code in _CODE.findall(text) if (found := _MODULE.fullmatch(code.split("(")[0].strip()))}
    assert {name for name in named if not _module_exists(name)} == set()


def _module_exists(name: str) -> bool:
    """The module, or an attribute of it that its source mentions. Settings and Iceberg's properties look alike."""
    parts = name.split(".")
    if parts[0] in {"astha", "registry"} and not any((ROOT / parts[0]).glob(f"{parts[1]}*")):
        return True
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        if source.exists():
            rest = parts[length:]
            return not rest or re.search(rf"\b{rest[0]}\b", source.read_text()) is not None
        if path.is_dir():
            return length == len(parts)
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target in _LINK.findall((ROOT / document).read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (ROOT / document).parent / path if path else ROOT / document
        if linked.resolve() in _GENERATED:
            continue
        if not linked.exists() or (anchor and anchor not in _anchors(linked)):
            broken.append(target)
    assert broken == []


def test_pages_that_code_and_configuration_name_exist() -> None:
    """Errors, alerts and comments send readers to a page; its heading exists too, where they name one."""
    folders = ("astha", "benchmarks", "components", "deploy", "registry", "tests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in _SOURCES]
    broken = []
    count = 0
    for path in [*paths, ROOT / "Makefile", ROOT / "mkdocs.yml", ROOT / "subscriptions.yaml", ROOT / "pyproject.toml"]:
        for named in _NAMED_PAGE.findall(path.read_text(errors="replace")):
            count += 1
            page, _, anchor = named.partition("#")
            if not (ROOT / page).exists() or (anchor and anchor not in _anchors(ROOT / page)):
                broken.append(f"{path.relative_to(ROOT)}: {named}")
    assert count > 50
    assert broken == []


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readmes_python_is_run_on_its_own_page() -> None:
    """A test of `docs/how-to/python.md` runs the code of that page."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block in (ROOT / "docs" / "how-to" / "python.md").read_text()
