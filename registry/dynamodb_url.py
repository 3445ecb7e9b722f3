"""``dynamodb://REGION/TABLE``, with ``?endpoint=`` for DynamoDB Local. Reading it needs no package of the extra."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

import msgspec

from registry.errors import Invalid

INSTALL = "pip install 'astha[dynamodb]'"

_TABLE = re.compile(r"^[A-Za-z0-9_.-]{3,255}$")


class Endpoint(msgspec.Struct, frozen=True):
    """``url``: of DynamoDB Local or another compatible server; None: AWS."""

    region: str
    table: str
    url: str | None = None

    @property
    def shown(self) -> str:
        return f"dynamodb://{self.region}/{self.table}" + (f"?endpoint={self.url}" if self.url else "")


def parse_endpoint(url: str) -> Endpoint:
    parts = urlsplit(url)
    shown = f"{parts.scheme}://{parts.hostname or ''}{parts.path}"  # without what may be a key
    table, parameters = parts.path.removeprefix("/"), dict(parse_qsl(parts.query))
    if parts.scheme != "dynamodb" or not parts.hostname or parts.username is not None:
        raise Invalid("registry URL", shown, "must be dynamodb://REGION/TABLE; keys come from AWS's chain")
    if not _TABLE.match(table):
        raise Invalid("registry URL", shown, "needs a table of 3 to 255 letters, digits, or any of _ . -")
    unknown = sorted(parameters.keys() - {"endpoint"})
    if unknown:
        raise Invalid("registry URL", shown, f"takes only the parameter endpoint, not {unknown[0]}")
    return Endpoint(parts.hostname, table, parameters.get("endpoint"))


def not_installed(url: str) -> Invalid:
    return Invalid("registry URL", parse_endpoint(url).shown, f"needs a package that is not installed: {INSTALL}")
