"""Locations: the one form of URI in the registry, built and parsed here only.

`file:///absolute/path` and `s3://bucket/key`. The path is literal, never percent-encoded: PyIceberg, Hadoop and DuckDB
all take what follows the scheme as it is. Characters that one of them would interpret (as an escape, a query, a
wildcard) are refused in a table's location and never part of a file's name.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from astha.errors import ConfigError

Scheme: TypeAlias = Literal["file", "s3"]

_S3_SCHEMES = ("s3://", "s3a://", "s3n://")  # Hadoop's names for the same bucket
_INTERPRETED = re.compile(r"[%?#*\[\]{}\\\x00-\x1f\x7f]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class BadLocation(ConfigError):
    """A location that the registry does not accept. The message says what to write instead."""


@dataclass(frozen=True, slots=True)
class Location:
    """A canonical URI in its parts: ``root`` is the bucket, or "" on local disk; ``key`` has no leading slash."""

    scheme: Scheme
    root: str
    key: str

    @property
    def uri(self) -> str:
        return f"file:///{self.key}" if self.scheme == "file" else f"s3://{self.root}/{self.key}".rstrip("/")

    @property
    def path(self) -> Path:
        """Raises `BadLocation` if the location is not on local disk."""
        if self.scheme != "file":
            raise BadLocation(f"{self.uri} is not on local disk")
        return Path("/", self.key)


def parse(uri: str) -> Location:
    """Parses a canonical URI, as the registry stores it, or Hadoop's spelling of one: engines that use Hadoop's file
    systems write `file:/path` and `s3a://bucket/key` into manifests, and a file keeps the name that Iceberg has for it.
    `canonical` reads what users write.
    """
    if uri.startswith("file:///"):
        return Location("file", "", uri[8:])
    if uri.startswith("file:/") and not uri.startswith("file://"):
        return Location("file", "", uri[6:])
    scheme = next((scheme for scheme in _S3_SCHEMES if uri.startswith(scheme)), None)
    if scheme is not None:
        bucket, _, key = uri[len(scheme) :].partition("/")
        return Location("s3", bucket, key)
    raise BadLocation(f"{uri!r} is not a location: the registry keeps file:///absolute/path and s3://bucket/key")


def canonical(written: str | Path, *, base: Path | None = None) -> str:
    """Returns the canonical URI of a location that users may write in several ways: a path (relative to ``base``, or
    to the working directory), file:/p, file:///p, s3a://b/k. It has no trailing slash, empty parts, ``.`` or ``..``.
    """
    text = os.fspath(written)
    scheme = next((scheme for scheme in _S3_SCHEMES if text.lower().startswith(scheme)), None)
    if scheme is not None:
        bucket, _, key = text[len(scheme) :].partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise BadLocation(f"{text!r}: {bucket!r} is not a bucket's name: write s3://bucket/prefix")
        parts = [part for part in key.split("/") if part]
        if "." in parts or ".." in parts:
            raise BadLocation(f"{text!r}: . and .. mean nothing in an S3 key: write the key out")
        return Location("s3", bucket, _literal(text, "/".join(parts))).uri
    if text.lower().startswith("file:"):
        text = _local_part(text)
    elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        raise BadLocation(f"{text!r}: only local paths, file:///path and s3://bucket/prefix are supported")
    if not text:
        raise BadLocation("an empty location: write a directory or s3://bucket/prefix")
    absolute = os.path.normpath((base or Path.cwd()) / text)
    return Location("file", "", _literal(text, absolute.lstrip("/"))).uri


def parse_file(written: str) -> Location | None:
    """Returns the location of a file that an engine names, in any of its spellings; None if it is of another kind of
    storage, or relative. Engines' names may have characters that `canonical` refuses, such as an escaped `%3A`.

    Raises `BadLocation` for a name with `.` or `..`, or of another host's disk: it can lead elsewhere.
    """
    lowered = written[:8].lower()
    scheme = next((scheme for scheme in _S3_SCHEMES if lowered.startswith(scheme)), None)
    kind: Scheme = "file" if scheme is None else "s3"
    bucket = ""
    if scheme is not None:
        bucket, _, path = written[len(scheme) :].partition("/")
    elif lowered.startswith("file:"):
        path = _local_part(written)
    elif written.startswith("/"):
        path = written
    else:
        return None
    parts = [part for part in path.split("/") if part]
    if "." in parts or ".." in parts:
        raise BadLocation(f"{written!r} has . or .. in its path, which can lead elsewhere: write the path out")
    return Location(kind, bucket, "/".join(parts))


def join(location: str, *parts: str) -> str:
    """Returns a URI below a canonical location."""
    return "/".join((location.rstrip("/"), *(part.strip("/") for part in parts if part.strip("/"))))


def _local_part(uri: str) -> str:
    rest = uri[5:]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost"):
            raise BadLocation(f"{uri!r} names the host {host!r}: write file:///absolute/path")
        rest = slash + path
    if not rest.startswith("/"):
        raise BadLocation(f"{uri!r} is relative: write file:///absolute/path")
    return rest


def _literal(written: str, key: str) -> str:
    found = _INTERPRETED.search(key)
    if found is not None:
        raise BadLocation(
            f"{written!r} contains {found.group()!r}, which some readers of the lake interpret: "
            "choose a location without % ? # * [ ] { } \\ and control characters"
        )
    return key
