"""The JSON schema of the Compose specification, from the Python package that ships it: fetched once per user."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from tests.servers.jars import alone, cache_directory

_PACKAGE = "check-jsonschema==0.39.0"
_HASH = "sha256:14ce5c94871c551268ea948ffe21e9f1464dc48fb20bf9a4c13deeaaf756cf9b"
_MEMBER = "check_jsonschema/builtin_schemas/vendor/compose-spec.json"
_DOWNLOAD_S = 300.0


class SchemaMissing(Exception):
    """The schema could not be fetched; the message says why."""


def compose_schema() -> dict[str, Any]:
    target = cache_directory() / "schemas" / f"compose-{_PACKAGE.partition('==')[2]}.json"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with alone(target.with_suffix(".lock")):
            if not target.exists():
                _download(target)
    schema: dict[str, Any] = json.loads(target.read_text())
    return schema


def _download(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text(f"{_PACKAGE} --hash={_HASH}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        done = subprocess.run(
            [*command, "--requirement", str(wanted), "--dest", scratch],
            capture_output=True, text=True, check=False, timeout=_DOWNLOAD_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise SchemaMissing(f"could not fetch {_PACKAGE}, which contains the schema of compose.yaml: {done.stderr}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (Path(scratch) / "schema.json").write_bytes(archive.read(_MEMBER))
        (Path(scratch) / "schema.json").replace(target)
