"""YAML that is meant to exhaust its reader, and ordinary aliases."""

from __future__ import annotations

from pathlib import Path

import pytest

from astha import strict_yaml
from astha.errors import ConfigError
from astha.strict_yaml import MAX_DEPTH, parse, read_text

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)
CHAIN = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 1_000))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{p: *a{n - 1}, q: *a{n - 1}}}\n" for n in range(1, 40))


def test_aliases_are_expanded() -> None:
    document = parse("base: &base {tables: [topics]}\na: *base\nb:\n  lane: [*base, *base]\n")
    assert document.content["a"] == {"tables": ["topics"]}
    assert document.content["b"] == {"lane": [{"tables": ["topics"]}] * 2}
    assert document.lines["b", "lane"] == 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, r"line 5: more than 100,000 values"),
        (MERGES, r"line \d+: more than 100,000 values"),
        (CHAIN, r"line \d+: more than 100 nested levels"),
        ("[" * 2_000 + "]" * 2_000, r"line 1: more than 100 nested levels"),
        ("- " * 2_000 + "a", r"line 1: more than 100 nested levels"),
        ("{a: " * 2_000 + "1" + "}" * 2_000, r"line 1: more than 100 nested levels"),
        ("a: &a {b: *a}", r"line 1: \*a refers to a node that contains it"),
        ("a: &a [*a]", r"line 1: \*a refers to a node that contains it"),
        ("a: *nothing", r"line 1: not YAML: found undefined alias"),
        ("x: 1\n? [a, b]\n: 2\n", r"line 2: a key is a list"),
        ("x: 1\n? {a: b}\n: 2\n", r"line 2: a key is a list"),
        ("a: 1\nday: 2001-99-99\n", r"line 2: can't be read as timestamp: month must be"),
        ("a: 0b_\n", r"line 1: can't be read as int"),
        ("a: " + "9" * 5_000, r"line 1: can't be read as int"),
        ("a: !!bool x", r"line 1: can't be read as bool"),
        ('a: !!int ""', r"line 1: can't be read as int"),
        ("a: !!timestamp x", r"line 1: can't be read as timestamp"),
        ("a: !!python/object/apply:os.system [x]", r"line 1: not YAML: could not determine a constructor"),
        ("a: \0", r"line 1: not YAML"),
        ("a: &a {x: 1}\nb: {<<: *a}\n", r"line 2: not YAML: could not determine a constructor for .*merge"),
        ("a: 1\n---\nb: 2\n", r"line 2: not YAML: but found another document"),
    ],
)
def test_documents_beyond_the_limits_are_refused_with_their_line(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(text)


def test_documents_within_the_limits_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("").content is None
    assert parse("[" * MAX_DEPTH + "]" * MAX_DEPTH).content is not None
    monkeypatch.setattr(strict_yaml, "MAX_NODES", 1_000)
    assert len(parse("[" + "x," * 999 + "]").content) == 999
    with pytest.raises(ConfigError, match="more than 1,000 values"):
        parse("[" + "x," * 1_000 + "]")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_yaml, "MAX_BYTES", 100)
    path = tmp_path / "large.yaml"
    path.write_text("a" * 100)
    assert len(read_text(path)) == 100
    path.write_text("a" * 101)
    with pytest.raises(ConfigError, match=r"large.yaml: has more than 100 bytes"):
        read_text(path)
