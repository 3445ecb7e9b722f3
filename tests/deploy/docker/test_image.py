"""The images, built and run: as their own user, on a read-only root. `make image` runs this; it takes minutes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from registry.embedded_postgres import free_port
from tests.deploy.docker.demo_files import OUR_IMAGES
from tests.deploy.docker.image_engine import Engine, find_engine

pytestmark = pytest.mark.long

DAEMON, SPARK = "astha:0.1.0", "astha-spark:0.1.0"

_HEALTHY_THEN_STOPPED = """
astha $1 & daemon=$!
tries=0
until python /usr/local/lib/astha/healthcheck.py $2; do
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || exit 90
    kill -0 "$daemon" || exit 91
    sleep 0.5
done
kill "$daemon"
wait "$daemon" || exit 92
python /usr/local/lib/astha/healthcheck.py $2 && exit 93
echo "stopped"
"""

_COMPACTED = """
set -e
astha tables create shop.orders --if-not-exists --column id:long!
for number in 1 2 3 4 5 6; do echo "{\\"id\\": $number}" | astha insert shop.orders --format json -; done
astha compaction run shop.orders --json
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    found = find_engine(tmp_path_factory.mktemp("images"))
    yield found
    found.close()


@pytest.fixture(scope="module", params=sorted(OUR_IMAGES))
def tag(engine: Engine, request: pytest.FixtureRequest) -> str:
    """An image, built. Prints time and size."""
    name: str = request.param
    before = time.monotonic()
    engine.build(OUR_IMAGES[name], name)
    took, size = time.monotonic() - before, engine.size(name) / 1_000_000
    sys.stdout.write(f"\n{name}: {size:.0f} MB, built by {engine.name} in {took:.0f} s\n")
    return name


def test_configuration(engine: Engine, tag: str) -> None:
    config = engine.config(tag)
    assert config["User"] == "10001:10001"
    assert config["Cmd"] == ["run"]
    assert config["Entrypoint"] == ["astha"]
    assert config["Healthcheck"]["Test"] == ["CMD", "python", "/usr/local/lib/astha/healthcheck.py"]
    assert config["Labels"]["org.opencontainers.image.version"] == tag.partition(":")[2]
    assert "/var/lib/astha" in config["Volumes"]


def test_commands(engine: Engine, tag: str) -> None:
    version = engine.run(tag, "astha", "--version")
    assert version.stdout.split() == ["astha", tag.partition(":")[2]], version.stderr
    described = engine.run(tag, "astha", "--help")
    assert described.returncode == 0
    for command in ("run", "catalog", "check", "insert", "produce", "verify"):
        assert f"\n  {command}" in described.stdout
    assert "not installed" not in described.stdout or tag == DAEMON


def test_the_user_can_write_the_volume_and_tmp_alone(engine: Engine, tag: str) -> None:
    assert engine.run(tag, "id", "-u").stdout.strip() == "10001"
    for place in ("/", "/etc/astha", "/opt/astha", "/usr/local/lib/astha"):
        refused = engine.run(tag, "touch", f"{place}/file")
        assert refused.returncode != 0, place
        assert "Read-only" in refused.stderr
    for place in ("/tmp", "/var/lib/astha"):  # noqa: S108 - in the container
        assert engine.run(tag, "touch", f"{place}/file").returncode == 0, place


def test_no_compiler_and_no_cache(engine: Engine, tag: str) -> None:
    """As root, because the image's user can't look into /root. The last line shows that the script could."""
    script = """
    for program in gcc cc g++ make ld; do command -v "$program"; done
    ls -d /build /opt/astha/bin/pip /var/lib/apt/lists/*_* /var/cache/apt/archives/*.deb 2>/dev/null
    find / -xdev -path /proc -prune -o -type d \\( -name .cache -o -name pip-cache \\) -not -empty -print
    ls -A /root >/dev/null && id -u
    """
    done = engine.run(tag, "sh", "-c", script, as_root=True)
    assert done.stdout.split() == ["0"], "the others do not belong into the image"


def test_bytecode_is_compiled(engine: Engine, tag: str) -> None:
    """A read-only root takes no bytecode later: every start would compile."""
    script = "import os, astha.daemon as a, pyarrow as b; print(all(os.path.exists(m.__cached__) for m in (a, b)))"
    assert engine.run(tag, "python", "-c", script).stdout.strip() == "True"


def test_check_finds_no_problem(engine: Engine, tag: str) -> None:
    migrated = engine.run(tag, "astha", "registry", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    checked = engine.run(tag, "astha", "check", environment={"ASTHA_SERVER__PORT": str(free_port())})
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert ("compactor" in checked.stdout) == (tag == SPARK)


@pytest.mark.parametrize(("command", "group"), [("run", "server"), ("catalog", "catalog")])
def test_a_daemon_is_healthy_until_it_is_stopped(engine: Engine, tag: str, command: str, group: str) -> None:
    engine.run(tag, "astha", "registry", "migrate")
    environment = {f"ASTHA_{group.upper()}__PORT": str(free_port())}
    done = engine.run(tag, "sh", "-c", _HEALTHY_THEN_STOPPED, "sh", command, group, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped" in done.stdout


@pytest.mark.parametrize("tag", [SPARK], indirect=True)
def test_spark_compacts(engine: Engine, tag: str) -> None:
    engine.run(tag, "astha", "registry", "migrate")
    done = engine.run(tag, "sh", "-c", _COMPACTED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"status":"done"' in done.stdout
