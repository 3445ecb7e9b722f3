"""Makes the demo's passwords and tokens: random, once, and one directory per service.

Usage: make_secrets.py DIRECTORY. `DIRECTORY/all` has one file per secret, and all other files are derived from those: a
second run writes the same files again, also after a crash between any two of them.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

NAMES = ("postgres_password", "s3_access_key", "s3_secret_key", "token", "read_token", "grafana_password")

# Read by containers of one service each, whose users differ; no other container has the volume.
MODE = 0o444

SETTINGS = """\
registry: {{url: "postgresql://astha:{postgres_password}@postgres/registry"}}
lake: {{s3: {{access_key: "{s3_access_key}", secret_key: "{s3_secret_key}"}}}}
"""


def main(directory: Path) -> None:
    values = {name: secret(directory / "all" / name) for name in NAMES}
    for path, text in files(values).items():
        write(directory / path, text)


def files(values: dict[str, str]) -> dict[str, str]:
    return {
        "astha/astha.yaml": SETTINGS.format(**values),
        "astha/token": values["token"],
        "astha/read_token": values["read_token"],
        "postgres/password": values["postgres_password"],
        "s3/access_key": values["s3_access_key"],
        "s3/secret_key": values["s3_secret_key"],
        "prometheus/read_token": values["read_token"],
        "grafana/password": values["grafana_password"],
    }


def secret(path: Path) -> str:
    if not path.exists():
        write(path, secrets.token_hex(20))
    return path.read_text()


def write(path: Path, text: str) -> None:
    """The file appears whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with unfinished.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.chmod(MODE)
    unfinished.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
