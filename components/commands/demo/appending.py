"""An agent of the streams part, in a process of its own so that it can be killed.

Reads its task from stdin and prints a line for each append that is durable.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import msgspec
import structlog
from pydantic import SecretStr

from astha.clock import SystemLoopClock
from astha.subscribers import ComponentContext, LakeSettings
from components.lib.streams.agents import Agent, AgentSettings
from components.lib.streams.errors import AppendFailed, AppendUnknown, NotLeader
from components.lib.streams.writer import SegmentWriter, Stamp
from registry.connect import open_store

LEASE_S = 2.0
_AGAIN_S = 0.05


class Order(msgspec.Struct):
    """``done`` counts the records per partition that were acknowledged to the previous owner."""

    url: str
    warehouse: str
    topic: str
    producer: str
    done: dict[int, int]
    records: int  # of each partition, in all
    batch: int


class Line(msgspec.Struct, array_like=True):
    partition: int
    done: int


async def produce(order: Order) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    clock = SystemLoopClock()
    store = await open_store(order.url)
    around = ComponentContext(store, clock, SecretStr(order.url), LakeSettings(warehouse=order.warehouse))
    settings = AgentSettings(lease_s=LEASE_S, renew_every_s=LEASE_S / 4)
    async with Agent(store, clock, settings) as agent, SegmentWriter(around, agent) as writer:

        async def fill(partition: int) -> None:
            done = order.done[partition]
            while done < order.records:
                values = [b"%d/%d" % (partition, number) for number in range(done, done + order.batch)]
                stamp = Stamp(order.producer, done)  # by which a repetition is known
                try:
                    await writer.append(order.topic, partition, values, stamp=stamp)
                except (NotLeader, AppendFailed, AppendUnknown):
                    await clock.sleep(_AGAIN_S)
                    continue
                done += order.batch
                sys.stdout.buffer.write(msgspec.json.encode(Line(partition, done)) + b"\n")
                sys.stdout.buffer.flush()

        await asyncio.gather(*map(fill, order.done))
    await store.close()


if __name__ == "__main__":
    asyncio.run(produce(msgspec.json.decode(sys.stdin.buffer.read(), type=Order, strict=False)))
