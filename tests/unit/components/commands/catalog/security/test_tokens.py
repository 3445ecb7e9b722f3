from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from components.commands.catalog.security.tokens import TokenRefused, Tokens, claimed_client

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
SECRETS = {"spark": "a secret of spark", "trino": "a secret of trino"}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def test_every_process_with_the_key_accepts_a_token_until_it_expires() -> None:
    clock = Clock()
    one, other = Tokens(KEY, SECRETS, 60, clock), Tokens(KEY, SECRETS, 5, clock)
    token = one.issue("spark")
    assert other.client_of(token) == "spark" == claimed_client(token)
    clock.now += 59
    assert other.client_of(token) == "spark"
    clock.now += 1
    with pytest.raises(TokenRefused, match="expired"):
        other.client_of(token)


@pytest.mark.parametrize(
    "tokens",
    [
        Tokens(OTHER_KEY, SECRETS, 60),
        Tokens(KEY, {"trino": SECRETS["trino"]}, 60),
        Tokens(KEY, {**SECRETS, "spark": "a new secret of spark"}, 60),
    ],
    ids=["another key", "a removed client", "a new secret"],
)
def test_a_token_ends_with_its_key_client_and_secret(tokens: Tokens) -> None:
    with pytest.raises(TokenRefused, match="not valid"):
        tokens.client_of(Tokens(KEY, SECRETS, 60).issue("spark"))


def test_a_token_says_when_it_expires_as_clients_read_it() -> None:
    _, claims, _ = Tokens(KEY, SECRETS, 60, Clock()).issue("spark").split(".")
    assert json.loads(base64.urlsafe_b64decode(claims + "==")) == {"sub": "spark", "iat": 1_000_000, "exp": 1_000_060}


def test_forged_tokens_are_refused() -> None:
    tokens = Tokens(KEY, SECRETS, 60, Clock())
    header, claims, signature = tokens.issue("spark").split(".")
    later = encoded({"sub": "spark", "iat": 1_000_000, "exp": 9_000_000})
    as_trino = encoded({"sub": "trino", "iat": 1_000_000, "exp": 1_000_060})
    none = encoded({"alg": "none", "typ": "JWT"})
    forged = [
        "", ".", "..", "a.b.c", f"{header}.{claims}", f"{header}.{claims}.", f"{header}.{later}.{signature}",
        f"{header}.{as_trino}.{signature}", f"{none}.{claims}.", f"{none}.{claims}.{signature}",
        f"{header}.{claims}.{signature}A", f"{header}.{claims}.{signature[:-2]}", f"{header}.é.{signature}",
        f"{header}.{encoded([])}.{signature}", f"{header}.{encoded({'sub': 1})}.{signature}", f"{header}.a.{signature}",
        f"{header}.{claims}=.{signature}", "a" * 100_000,
    ]  # fmt: skip
    for token in forged:
        with pytest.raises(TokenRefused, match="not valid"):
            tokens.client_of(token)
