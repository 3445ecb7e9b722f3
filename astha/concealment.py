"""Keeping secrets out of whatever is printed, logged or served, also where somebody else's message carries them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

MASK = "***"

_SHORTEST = 4
"""Anything shorter would mask half of the text; it is still never printed as a setting."""


class Concealment:
    """Replaces each known secret, as it is or as URLs and JSON spell it."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        spellings = {
            spelling
            for secret in secrets
            if len(secret) >= _SHORTEST
            for spelling in (secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1])
        }
        longest_first = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if spellings else None

    def __call__(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)


NOTHING = Concealment()
"""For where no secret is known."""
