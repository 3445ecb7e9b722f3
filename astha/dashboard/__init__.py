"""The dashboard's files: HTML, CSS and ES modules, served as they are.

In: package data, read once. Out: files by name, with the headers that every response of the listener has.
Guaranteed: no script, style or address of another origin is used, and none within a page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class Asset(msgspec.Struct, frozen=True):
    body: bytes
    content_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """Returns the files by name; the page itself is ``index.html``."""
    found = {}
    for path in sorted((Path(__file__).parent / "assets").iterdir()):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            found[path.name] = Asset(body, _TYPES[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:20]}"')
    return found
