"""Records in flight, on a producer that the test answers for."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, TopicAuthorizationFailedError

from components.kafka_sink.batch_producer import BatchProducer
from components.kafka_sink.errors import GaveWay, NotAcknowledged, SendFailed
from components.kafka_sink.outbox import Outbox
from components.kafka_sink.record_encoding import NO_HEADERS, encode_record
from components.kafka_sink.settings import KafkaSinkSettings
from tests.unit.components.kafka_sink.producer_double import FakeProducer


def one(number: int, index: int = 0) -> bytes:
    return encode_record(index, b"key", b"%d" % number, NO_HEADERS)


class Broker:
    """Opens producers, and remembers them."""

    def __init__(self, **settings: Any) -> None:
        self.producers: list[FakeProducer] = []
        chosen = {"bootstrap_servers": "b:1", "acknowledge_timeout_s": 0.05, **settings}
        self.outbox = Outbox(KafkaSinkSettings.model_validate(chosen), self._open, lambda: False)

    @property
    def producer(self) -> FakeProducer:
        return self.producers[-1]

    def _open(self) -> BatchProducer:
        self.producers.append(FakeProducer())
        return cast("BatchProducer", self.producers[-1])

    def deliver(self, *records: tuple[int, str]) -> None:
        """As the layouts do: records by number and topic, those that are known left out."""
        self.outbox.begin()
        for number, topic in records:
            if not self.outbox.knows((number,)):
                self.outbox.send((number,), topic, b"key", b"%d" % number)
        self.outbox.wait()
        self.outbox.forget()


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_what_is_in_flight_is_awaited_and_not_sent_again(broker: Broker) -> None:
    batch = [(1, "a"), (2, "a")]
    with pytest.raises(NotAcknowledged, match="2 records are not acknowledged"):
        broker.deliver(*batch)
    for each in broker.producer.batches:
        each.finish()
    broker.deliver(*batch)
    assert broker.producer.sent == [("a", one(1)), ("a", one(2))]
    assert broker.outbox.counters["records"] == 2


def test_after_a_refusal_the_rest_goes_to_a_new_producer(broker: Broker) -> None:
    batch = [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a")]
    with pytest.raises(NotAcknowledged):
        broker.deliver(*batch)
    for number, each in enumerate(broker.producer.batches, start=1):
        each.finish(TopicAuthorizationFailedError("a") if number == 3 else None)
    with pytest.raises(SendFailed, match="not authorised for topic a"):
        broker.deliver(*batch)
    assert broker.producers[0].closed
    with pytest.raises(NotAcknowledged):
        broker.deliver(*batch)
    # Topic b was acknowledged whole. Record 5 follows a lost one of its topic: it must not stay before it.
    assert broker.producer.sent == [("a", one(3)), ("a", one(5))]


def test_acknowledged_records_are_sent_again_if_they_come_in_a_later_delivery(broker: Broker) -> None:
    broker.outbox.begin()
    broker.producer.acknowledges = True
    broker.deliver((1, "a"))
    broker.deliver((1, "a"))
    assert broker.producer.sent == [("a", one(1))] * 2


def test_bytes_in_flight_are_bounded() -> None:
    broker = Broker(max_in_flight_bytes=1_000)
    with pytest.raises(NotAcknowledged):
        broker.deliver(*((number, "a") for number in range(100)))
    assert len(broker.producer.sent) == 9  # 100 bytes and more each
    for each in broker.producer.batches:
        each.finish()
    broker.producer.acknowledges = True
    broker.deliver(*((number, "a") for number in range(100)))
    assert broker.producer.sent == [("a", one(number)) for number in range(100)]


def test_a_record_too_large_leaves_the_producer_usable() -> None:
    broker = Broker(max_request_bytes=16_384)
    broker.outbox.begin()
    broker.producer.acknowledges = True
    with pytest.raises(MessageSizeTooLargeError):
        broker.outbox.send((1,), "a", b"key", b"." * 16_384)
    broker.deliver((2, "a"))
    assert broker.producer.sent == [("a", one(2))]
    assert len(broker.producers) == 1


def test_records_of_a_partition_share_batches(broker: Broker) -> None:
    broker.outbox.begin()
    broker.producer.acknowledges = True
    broker.outbox.close(0)
    broker.outbox._open_producer = lambda: cast("BatchProducer", shared)
    shared = FakeProducer()
    shared.acknowledges = True
    shared.batch_bytes = 125  # room for two, as their size is estimated
    broker.deliver((1, "a"), (2, "b"), (3, "a"), (4, "a"))
    assert shared.sent == [("a", one(1) + one(3, index=1)), ("b", one(2)), ("a", one(4))]
    assert broker.outbox.counters["records"] == 4


def test_what_was_collected_when_a_delivery_failed_is_not_sent_twice(broker: Broker) -> None:
    broker.outbox.begin()
    broker.outbox.send((1,), "a", b"key", b"1")
    broker.producer.refuses = KafkaTimeoutError("Failed to update metadata after 4.0 secs.")
    with pytest.raises(NotAcknowledged):
        broker.outbox.send((2,), "b", b"key", b"2")
    broker.producer.refuses = None
    broker.producer.acknowledges = True
    broker.deliver((1, "a"), (2, "b"))
    assert broker.producer.sent == [("a", one(1)), ("b", one(2))]


def test_a_producer_without_metadata_asks_for_another_attempt(broker: Broker) -> None:
    broker.outbox.begin()
    broker.producer.refuses = KafkaTimeoutError("Failed to update metadata after 4.0 secs.")
    with pytest.raises(NotAcknowledged, match="nothing can be sent: topic a: KafkaTimeoutError"):
        broker.deliver((1, "a"))


def test_records_of_a_refresh_are_not_kept(broker: Broker) -> None:
    broker.outbox.begin()
    broker.producer.acknowledges = True
    for number in range(100):
        broker.outbox.send((-1, number), "a", b"key", b"value")
    broker.outbox.wait()
    assert not broker.outbox._acknowledged
    assert not broker.outbox._in_flight


def test_an_abandoned_producer_is_closed(broker: Broker) -> None:
    with pytest.raises(NotAcknowledged):
        broker.deliver((1, "a"))
    broker.outbox.abandon()
    assert broker.producers[0].closed
    broker.outbox.begin()
    assert not broker.outbox.knows((1,))


def test_a_delivery_that_waited_for_its_turn_has_less_time(broker: Broker) -> None:
    broker.outbox.begin(submitted=time.monotonic() - 1_000)
    broker.outbox.send((1,), "a", b"key", b"1")
    with pytest.raises(NotAcknowledged):
        broker.outbox.wait()
    assert broker.producer.waits == 0  # the 0.05 s are long over
    broker.outbox.begin()
    with pytest.raises(NotAcknowledged):
        broker.outbox.wait()
    assert broker.producer.waits > 0


def holds_commits(broker: Broker) -> bool:
    return broker.outbox.holds_commits


def test_a_wait_gives_way_only_if_nothing_was_acknowledged_meanwhile() -> None:
    broker = Broker(acknowledge_timeout_s=1_000)
    broker.outbox.begin()
    broker.outbox.send((-1, 1), "a", None, b"heartbeat")
    with pytest.raises(GaveWay):
        broker.outbox.wait(lambda: True)
    assert not holds_commits(broker)
    broker.outbox.send((2,), "a", b"key", b"2")
    assert holds_commits(broker)
    broker.producer.acknowledges_when_awaited = True
    broker.outbox.wait(lambda: True)
    assert not holds_commits(broker)
    assert broker.outbox.counters["records"] == 2
