"""Canaries: they fail when kafka-python is upgraded, and say which part of `batch_producer` to look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import kafka
import pytest
from kafka.producer.future import FutureProduceResult, FutureRecordMetadata
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.record_accumulator import IncompleteProducerBatches, RecordAccumulator
from kafka.producer.sender import Sender
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecordsBuilder

VERSION = "3.0.12"
HERE = "components/kafka_sink/batch_producer.py"

PARTS: dict[str, tuple[str, str, Any]] = {
    # what: (digest of its source, what of ours depends on it, the thing itself)
    "ProducerBatch": ("0131c28c39c7", "Batch is one", ProducerBatch),
    "FutureProduceResult": ("d807e7350d65", "Batch waits for it and reads its value", FutureProduceResult),
    "FutureRecordMetadata": ("ed5ba95ce664", "Batch makes them if it is split", FutureRecordMetadata),
    "RecordAccumulator.append": ("834a501e1eab", "BatchProducer.enqueue replaces it", RecordAccumulator.append),
    "RecordAccumulator.ready": ("cab587660dbe", "a full batch is sent at once", RecordAccumulator.ready),
    "RecordAccumulator.drain_batches_for_one_node": (
        "dbdb5e022752",
        "sequence numbers are given when a batch is drained",
        RecordAccumulator.drain_batches_for_one_node,
    ),
    "RecordAccumulator.split_and_reenqueue": (
        "bc82f289c457",
        "Batch makes the futures that it reads",
        RecordAccumulator.split_and_reenqueue,
    ),
    "IncompleteProducerBatches": ("919bc6ee20fb", "BatchProducer.enqueue adds to it", IncompleteProducerBatches),
    "MemoryRecordsBuilder": ("096063c42677", "BatchProducer.batch sets its state", MemoryRecordsBuilder),
    "DefaultRecordBatchBuilder": ("7c6cd5a96f22", "BatchProducer.batch sets its state", DefaultRecordBatchBuilder),
    "Sender._complete_batch": ("6fa3de760946", "Batch.error reads what it sets", Sender._complete_batch),
    "Sender._dispatch_error": ("4019d9d8c84a", "retries and splits", Sender._dispatch_error),
}


def test_the_version_is_the_reviewed_one() -> None:
    assert kafka.__version__ == VERSION, (
        f"kafka-python {kafka.__version__} is installed. Read {HERE} against it (the test below names the parts that "
        "have changed), run the tests of the Kafka sink and benchmarks.fanout, then change VERSION here"
    )


@pytest.mark.parametrize("name", PARTS)
def test_a_private_part_is_unchanged(name: str) -> None:
    digest, dependent, part = PARTS[name]
    found = digest_of(part)
    assert found == digest, (
        f"kafka-python's {name} has changed. What depends on it: {dependent} ({HERE}). If that is still right, change "
        f"the digest here to {found}"
    )


def digest_of(part: Callable[..., Any] | type) -> str:
    return sha256(inspect.getsource(part).encode()).hexdigest()[:12]
