"""Records in flight, on a producer that the test answers for."""

from __future__ import annotations

from typing import Any, cast

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, TopicAuthorizationFailedError

from components.kafka_sink import outbox as outbox_module
from components.kafka_sink.errors import NotAcknowledged, SendFailed
from components.kafka_sink.outbox import Outbox
from components.kafka_sink.settings import KafkaSinkSettings


class FakeFuture:
    def __init__(self) -> None:
        self.is_done = False
        self.exception: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        self.is_done, self.exception = True, error

    def succeeded(self) -> bool:
        return self.is_done and self.exception is None

    def get(self, timeout: float) -> None:
        if not self.is_done:
            raise KafkaTimeoutError("not yet")


class FakeProducer:
    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes]] = []
        self.futures: list[FakeFuture] = []
        self.refuses: Exception | None = None
        self.acknowledges = False
        self.closed = False

    def send(self, topic: str, *, value: bytes, key: bytes | None, headers: Any) -> FakeFuture:
        if self.refuses is not None:
            raise self.refuses
        future = FakeFuture()
        if self.acknowledges:
            future.finish()
        self.sent.append((topic, value))
        self.futures.append(future)
        return future

    def flush(self, timeout: float) -> None:
        if not all(future.is_done for future in self.futures):
            raise KafkaTimeoutError("not yet")

    def close(self) -> None:
        self.closed = True
        for future in self.futures:
            if not future.is_done:
                future.finish(KafkaTimeoutError("closed"))


class Broker:
    """Opens producers, and remembers them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.producers: list[FakeProducer] = []
        monkeypatch.setattr(outbox_module, "close", lambda producer, timeout_s: producer.close())
        chosen = {"bootstrap_servers": "b:1", "acknowledge_timeout_s": 0.05, **settings}
        self.outbox = Outbox(KafkaSinkSettings.model_validate(chosen), self._open, lambda: False)

    @property
    def producer(self) -> FakeProducer:
        return self.producers[-1]

    def _open(self) -> KafkaProducer:
        self.producers.append(FakeProducer())
        return cast("KafkaProducer", self.producers[-1])

    def deliver(self, *records: tuple[int, str]) -> None:
        """As the layouts do: records by number and topic, those that are known left out."""
        self.outbox.begin()
        for number, topic in records:
            if not self.outbox.knows((number,)):
                self.outbox.send((number,), topic, b"key", b"%d" % number)
        self.outbox.wait()
        self.outbox.forget()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


def test_what_is_in_flight_is_awaited_and_not_sent_again(broker: Broker) -> None:
    batch = [(1, "a"), (2, "a")]
    with pytest.raises(NotAcknowledged, match="2 records are not acknowledged"):
        broker.deliver(*batch)
    for future in broker.producer.futures:
        future.finish()
    broker.deliver(*batch)
    assert broker.producer.sent == [("a", b"1"), ("a", b"2")]
    assert broker.outbox.counters["records"] == 2


def test_after_a_refusal_the_rest_goes_to_a_new_producer(broker: Broker) -> None:
    batch = [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "a")]
    with pytest.raises(NotAcknowledged):
        broker.deliver(*batch)
    one, two, three, four, five = broker.producer.futures
    for future in (one, four, five):
        future.finish()
    two.finish()
    three.finish(TopicAuthorizationFailedError("a"))
    with pytest.raises(SendFailed, match="not authorised for topic a"):
        broker.deliver(*batch)
    assert broker.producers[0].closed
    with pytest.raises(NotAcknowledged):
        broker.deliver(*batch)
    # Topic b was acknowledged whole. Record 5 follows a lost one of its topic: it must not stay before it.
    assert broker.producer.sent == [("a", b"3"), ("a", b"5")]


def test_acknowledged_records_are_sent_again_if_they_come_in_a_later_delivery(broker: Broker) -> None:
    broker.outbox.begin()
    broker.producer.acknowledges = True
    broker.deliver((1, "a"))
    broker.deliver((1, "a"))
    assert broker.producer.sent == [("a", b"1")] * 2


def test_bytes_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(monkeypatch, max_in_flight_bytes=1_000)
    with pytest.raises(NotAcknowledged):
        broker.deliver(*((number, "a") for number in range(100)))
    assert len(broker.producer.sent) == 9  # 100 bytes and more each
    for future in broker.producer.futures:
        future.finish()
    broker.producer.acknowledges = True
    broker.deliver(*((number, "a") for number in range(100)))
    assert broker.producer.sent == [("a", b"%d" % number) for number in range(100)]


def test_a_record_too_large_leaves_the_producer_usable(broker: Broker) -> None:
    broker.outbox.begin()
    broker.producer.refuses = MessageSizeTooLargeError()
    with pytest.raises(MessageSizeTooLargeError):
        broker.deliver((1, "a"))
    broker.producer.refuses = None
    broker.producer.acknowledges = True
    broker.deliver((2, "a"))
    assert len(broker.producers) == 1


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
