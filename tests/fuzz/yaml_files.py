"""YAML files of every kind that Astha reads: subscriptions, settings, definitions of tables.

Promised: only ConfigError comes out, it names the file, and neither time nor memory grow with what aliases stand for.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from astha.errors import ConfigError
from astha.routing.subscriptions import read_subscriptions
from astha.settings.loading import load_settings
from components.lib.lake.schema.table_definition import read_definition
from components.lib.lake.schema.table_schema import SchemaProblem
from tests.fuzz.mutations import mutated

SHIPPED = (Path(__file__).parents[2] / "subscriptions.yaml").read_bytes()
SETTINGS = b"""\
registry: {url: sqlite:///registry.db, pool_size: 10}
server:
  port: 9187
  host: 127.0.0.1
lake: {warehouse: /data, catalog: {uri: "sqlite:///c.db"}}
log: {level: info}
source: {transaction_limit_events: 10}
"""
DEFINITION = b"""\
columns:
  id: long!
  price: decimal(9,2)
  tags: map<string, list<struct<a: int, b: string!>>>
  at: timestamptz
partition_by: [day(at), "bucket(16, id)"]
sort_by: [id desc nulls last]
properties: {compaction.strategy: binpack}
"""
ICEBERG = b"""\
{"type": "struct", "fields": [{"id": 1, "name": "id", "required": true, "type": "long"},
 {"id": 2, "name": "l", "required": false,
  "type": {"type": "list", "element-id": 3, "element": "string", "element-required": false}}]}
"""


def _define(path: Path) -> None:
    definition = read_definition(path)
    with contextlib.suppress(SchemaProblem):  # of what the file means, not of how it is written
        definition.schema()


READERS: tuple[tuple[Callable[[Path], object], Sequence[bytes]], ...] = (
    (read_subscriptions, (SHIPPED,)),
    (load_settings, (SETTINGS,)),
    (_define, (DEFINITION, ICEBERG)),
)
WORDS = [
    b"&a ", b"*a", b"&a [*a]", b"<<: *a", b"? ", b"- ", b": ", b"{", b"}", b"[", b"]", b"{a: &b {c: *b}}", b"---\n",
    b"...\n", b"!!binary x", b"!!timestamp x", b"!!int \"\"", b"!!bool y", b"!!set {a, b}", b"!!omap [a: 1]",
    b"!!pairs [a: 1]", b"!!float x", b"!!python/name:os.system", b"!foo x", b"2001-99-99", b"0b_", b"0x10", b"1e400",
    b".inf", b".nan", b"-.inf", b"~", b"null", b"true", b"9" * 5_000, b"\t", b"\n", b"\r", b"\0", b"\xff",
    b"\xe2\x80\xa8", b"\xf0\x9f\xa6\x8a", b"'", b'"', b"\\ud800", b"|\n", b">\n", b"[" * 300, b"- " * 300,
    b"list<" * 300, b"struct<a: " * 80, b"decimal(99999999999999999999,2)", b"fixed(99999999999)",
    b"bucket(99999999999999999999, id)", b"truncate(0, id)", b"a: 1\n", b"components: {}", b"id: long",
    b"%YAML 9.9\n", b"%TAG ! x\n", b"12:30:45", b"1_0", b"0o9", b"08",
]  # fmt: skip


def play(rng: random.Random) -> None:
    reader, corpus = rng.choice(READERS)
    data = _aliases(rng) if rng.random() < 0.15 else rng.choice(corpus)
    data = data if rng.random() < 0.02 else mutated(rng, data, WORDS)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "file.yaml"
        path.write_bytes(data)
        try:
            reader(path)
        except ConfigError as error:
            if "file.yaml" not in str(error):
                raise AssertionError("the message does not name the file") from error


def _aliases(rng: random.Random) -> bytes:
    """Returns layers of aliases, each with several aliases of the previous one: lists, mappings or keys."""
    form = rng.choice(("[{}]", "{{p: {}}}", "{{? {} : 1}}"))
    width, depth = rng.choice(((1, 300), (2, 40), (10, 9), (3, 3)))
    lines = ["components:", "  a0: &a0 [x, y]"]
    for layer in range(1, depth):
        inside = form.format(", ".join([f"*a{layer - 1}"] * width)) if form[0] == "[" else form.format(f"*a{layer - 1}")
        lines.append(f"  a{layer}: &a{layer} {inside}")
    return "\n".join(lines).encode()
