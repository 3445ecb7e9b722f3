from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astha.redaction import MASK, Redactor, secrets_in, secrets_in_url


def test_a_secret_is_masked_in_every_spelling() -> None:
    secret = 'pa ss"wörd/+'
    redact = Redactor([secret])
    for text in (secret, f"postgresql://u:{'pa%20ss%22w%C3%B6rd%2F%2B'}@h", json.dumps({"password": secret})):
        assert redact(text) != text
        assert MASK in redact(text)


def test_text_is_unchanged_without_secrets_or_with_a_very_short_one() -> None:
    assert Redactor()("as it is") == "as it is"
    assert Redactor(["a"])("as it is") == "as it is"


@given(secret=st.text(min_size=4), before=st.text(), after=st.text())
def test_no_secret_survives(secret: str, before: str, after: str) -> None:
    redacted = Redactor([secret])(before + secret + after)
    assert secret not in redacted.replace(MASK, "")  # the rest may happen to spell it together


def test_a_secret_can_be_added_later_and_is_pickled() -> None:
    redact = Redactor(["open sesame"])
    redact.add("made at run time", "abc", "open sesame")
    assert redact("made at run time, open%20sesame, abc") == f"{MASK}, {MASK}, abc"
    again = pickle.loads(pickle.dumps(redact))  # noqa: S301
    assert again == redact
    assert again("made at run time") == MASK


def test_values_are_masked_and_keys_are_not() -> None:
    redact = Redactor(["state", 'with"quote'])
    told = {"state": ["live", "in this state"], "deep": {"state": ('with"quote', 5, None, True)}}
    assert redact.values(told) == {"state": ["live", f"in this {MASK}"], "deep": {"state": [MASK, 5, None, True]}}
    json.loads(json.dumps(redact.values(told)))


def test_an_object_is_masked_if_its_str_or_repr_shows_a_secret() -> None:
    redact = Redactor(["open sesame"])
    harmless = ValueError("nothing to hide")
    assert redact.values(harmless) is harmless
    assert redact.values(ValueError("open sesame")) == MASK
    assert redact.values([KeyError("open sesame")]) == [f"'{MASK}'"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:p@ss@host/db is no URL", "postgresql://u:***@host/db is no URL"),
        ("failed: postgresql+psycopg://u:hush%21@h:5/d?x=1", "failed: postgresql+psycopg://u:***@h:5/d?x=1"),
        ("http://127.0.0.1:27840/topics/a@b", "http://127.0.0.1:27840/topics/a@b"),
        ("file:///lake/a:b@c", "file:///lake/a:b@c"),
        ("host=h password=hush user=u", "host=h password=*** user=u"),
        ("password='hush hush' sslpassword=k", "password=*** sslpassword=***"),
        ("jdbc:postgresql://h/d?user=u&password=hush&ssl=1", "jdbc:postgresql://h/d?user=u&password=***&ssl=1"),
        ("sc://h:15002/;token=abcd;use_ssl=true", "sc://h:15002/;token=***;use_ssl=true"),
    ],
)
def test_an_unknown_password_within_a_url_is_masked(text: str, shown: str) -> None:
    assert Redactor()(text) == shown


def test_secrets_are_found_in_urls_and_in_settings_by_their_names() -> None:
    assert set(secrets_in_url("postgresql://u:p%40ss@w@h/d?sslpassword=k")) == {"p%40ss@w", "p@ss@w", "k"}
    settings = {"kafka": {"sasl_password": "one", "brokers": ["sasl://u:two@h"]}, "api": [{"Token": "three"}], "n": 5}
    assert set(secrets_in(settings)) == {"one", "two", "three"}
