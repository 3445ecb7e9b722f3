"""What travels to a worker and back. Spark sees bytes: no name, path or secret of it shows in its UI, plans or logs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

Work: TypeAlias = Callable[[Any], Any]
"""A function that can be imported by its name on every worker; it gets one argument."""

End: TypeAlias = Literal["done", "raised", "memory", "unfit", "refused", "unreachable", "stopped"]


class Order(msgspec.Struct, frozen=True):
    work: bytes  # the pickled function and its argument
    token: str
    leash: tuple[str, int] | None  # address of the leash; None if workers can't reach it
    patience_s: float  # between being told to stop and being made to
    limit_s: float | None = None  # after which the kernel ends the worker, if nobody has before

    def sealed(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def opened(cls, data: bytes) -> Order:
        return msgspec.msgpack.decode(data, type=cls)


class Outcome(msgspec.Struct, frozen=True):
    """What an attempt can say about itself is an answer, not a failure of its task: Spark would only try again."""

    end: End
    value: bytes = b""  # the pickled result, or the pickled error
    told: str = ""

    def sealed(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def opened(cls, data: bytes) -> Outcome:
        return msgspec.msgpack.decode(data, type=cls)


def pack(work: Work, argument: object) -> bytes:
    return pickle.dumps((work, argument), protocol=5)


def unpack(data: bytes) -> tuple[Work, object]:
    work, argument = pickle.loads(data)  # noqa: S301  (from our own driver, by way of Spark)
    return work, argument
