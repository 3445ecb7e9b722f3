"""Mutations of valid bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence

_NUMBERS = [
    number.to_bytes(width, order)
    for width in (1, 2, 4, 8)
    for number in (0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1)
    for order in ("little", "big")
]


def mutated(rng: random.Random, data: bytes, words: Sequence[bytes] = (), *, start: int = 0) -> bytes:
    """Makes one to four changes from `start` on: bits, bytes, boundary numbers, words, cuts, repetitions."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(start, max(len(changed), start + 1))
        match rng.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 2:
                number = rng.choice(_NUMBERS)
                changed[at : at + len(number)] = number
            case 3:
                del changed[at : at + rng.choice((1, 4, 40))]
            case 4:
                changed[at:at] = rng.randbytes(rng.choice((1, 3, 9)))
            case 5 if words:
                changed[at : at + rng.choice((0, 0, 1, 5))] = rng.choice(words)
            case 6:
                changed[at:at] = changed[at : at + rng.choice((1, 8, 50))]
            case 7 if rng.random() < 0.2:
                del changed[at:]
    return bytes(changed)
