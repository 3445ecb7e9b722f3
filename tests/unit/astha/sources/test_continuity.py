from __future__ import annotations

import json

import pytest

from astha.errors import ConfigError
from astha.events import Commit, Event, Operation
from astha.events.stream_records import Sender, encode_gap, encode_heartbeat, encode_transaction
from astha.sources.continuity import Continuity
from astha.sources.contract import Batch, Gap, Progress, Started
from registry.models import ConsumerGroup, Row
from registry.position import Position

TABLE = ConsumerGroup.table
TABLES = frozenset({TABLE})


def sender(epoch: int = 1, history: str = "h", *covers: str) -> Sender:
    return Sender("astha", epoch, history, covers or (TABLE,))


def sent(previous: int, position: int, by: Sender | None = None, max_bytes: int = 1 << 20) -> bytes:
    commit = Commit(position, Position(position), 0, 1)
    event: Event[Row] = Event(Operation.INSERT, ConsumerGroup(f"g{position}", 0, 0), None, commit, 0)
    return encode_transaction(by or sender(), Position(previous), [event], max_bytes)


def beat(position: int, previous: int | None = None, by: Sender | None = None) -> bytes:
    return encode_heartbeat(by or sender(), Position(position), None if previous is None else Position(previous))


def gap(position: int, by: Sender) -> bytes:
    return encode_gap(by, Position(position), "the leader refreshed")


def shown(batches: list[Batch]) -> list[object]:
    """Returns positions of transactions, and everything else as it is."""
    found: list[object] = []
    for batch in batches:
        found += [batch] if isinstance(batch, (Gap, Progress, Started)) else [item.position for item in batch]
    return found


class Stream:
    def __init__(self, continuity: Continuity | None = None) -> None:
        self.continuity = continuity or Continuity(TABLES)

    def take(self, *payloads: bytes) -> list[object]:
        return shown([batch for payload in payloads for batch in self.continuity.take(payload)])


@pytest.fixture
def stream() -> Stream:
    """Everything up to 10 has been received."""
    made = Stream()
    made.take(beat(10))
    return made


def test_a_new_group_starts_with_a_gap_when_everything_before_is_visible() -> None:
    stream = Stream()
    assert stream.take(sent(20, 30), beat(10)) == []
    first, *rest = stream.take(beat(20))
    assert isinstance(first, Gap)
    assert rest == [Started(Position(20)), 30]


def test_records_in_order_are_passed_on_at_once(stream: Stream) -> None:
    assert stream.take(sent(10, 20), sent(20, 25)) == [20, 25]


def test_repeated_records_are_dropped(stream: Stream) -> None:
    assert stream.take(sent(10, 20), sent(5, 10), sent(10, 20), sent(20, 25)) == [20, 25]


def test_a_missing_record_waits_for_a_heartbeat(stream: Stream) -> None:
    assert stream.take(sent(20, 30), sent(30, 40), beat(10), beat(15)) == []
    assert stream.continuity.synchronising
    assert stream.take(beat(20)) == [Started(Position(20)), 30, 40]


def test_a_heartbeat_alone_shows_that_records_are_missing(stream: Stream) -> None:
    assert stream.take(beat(20)) == [Started(Position(20))]


def test_a_heartbeat_that_has_come_further_with_nothing_to_send(stream: Stream) -> None:
    assert stream.take(beat(50, 10), sent(10, 60)) == [Progress(Position(50)), 60]


def test_after_an_interruption_the_next_record_tells_whether_something_is_missing(stream: Stream) -> None:
    stream.continuity.interrupted()
    assert stream.take(sent(10, 20)) == [Started(Position(10)), 20]
    stream.continuity.interrupted()
    assert stream.take(beat(20)) == [Started(Position(20))]
    stream.continuity.interrupted()
    assert stream.take(sent(30, 40), beat(40)) == [Started(Position(30)), 40]


def test_a_new_process_waits_for_a_heartbeat_even_if_nothing_is_missing() -> None:
    """What its predecessor received may not be visible yet, and components refresh at the start."""
    stream = Stream()
    stream.continuity.resume("h", Position(10), 1)
    assert stream.take(sent(10, 20), beat(5)) == []
    assert stream.take(beat(20)) == [Started(Position(10)), 20]


def test_a_new_process_that_knows_only_the_history_starts_without_a_gap() -> None:
    stream = Stream()
    stream.continuity.resume("h")
    assert stream.take(beat(20)) == [Started(Position(20))]


def test_a_resumed_process_notices_another_history() -> None:
    stream = Stream()
    stream.continuity.resume("earlier", Position(10), 1)
    first, *rest = stream.take(sent(4, 6), beat(4))
    assert isinstance(first, Gap)
    assert rest == [Started(Position(4)), 6]


def test_a_gap_record_needs_no_heartbeat(stream: Stream) -> None:
    later = sender(1, "later")
    assert stream.take(gap(5, later), sent(5, 7, later)) == [Gap("the leader refreshed"), Started(Position(5)), 7]
    assert stream.take(gap(5, later)) == []


def test_the_gap_is_returned_only_with_its_start(stream: Stream) -> None:
    """A component would refresh at once, and its snapshot might lack a transaction that was never received."""
    later = sender(1, "later")
    assert stream.take(sent(5, 7, later)) == []
    found = stream.take(beat(7, by=later))
    assert [type(item) for item in found] == [Gap, Started, int]


def test_records_of_a_deposed_leader_are_ignored(stream: Stream) -> None:
    old, new = sender(1), sender(2)
    assert stream.take(sent(10, 20, new), sent(20, 21, old), beat(50, by=old), gap(1, old)) == [20]
    assert stream.continuity.stale == 3
    assert stream.take(sent(20, 30, new)) == [30]


def test_a_restored_registry_has_lower_epochs(stream: Stream) -> None:
    restored = sender(3, "restored")
    stream.take(sent(10, 20, sender(9)))
    assert stream.take(beat(5, by=restored)) == []
    stream.continuity.restart(3, "the registry was restored")
    assert stream.take(beat(5, by=restored)) == [Gap("the registry was restored"), Started(Position(5))]


def test_a_malformed_record_is_missing(stream: Stream) -> None:
    assert stream.take(b"{", sent(20, 30), beat(30)) == [Started(Position(20)), 30]
    assert stream.continuity.malformed == 1


def test_rows_that_can_not_be_decoded_are_unlisted(stream: Stream) -> None:
    payload = json.loads(sent(10, 20))
    payload["events"][0]["data"] = {"group_id": 5}
    (batch,) = stream.continuity.take(json.dumps(payload).encode())
    assert not isinstance(batch, (Gap, Progress, Started))
    assert batch[0].unlisted == TABLES
    assert batch[0].events == []


def test_transactions_of_other_tables_only_move_the_position() -> None:
    both = sender(1, "h", TABLE, "topics")
    stream = Stream(Continuity(frozenset({"topics"})))
    stream.take(beat(10, by=both))
    assert stream.take(sent(10, 20, both), sent(20, 30, both, 1)) == [Progress(Position(20)), Progress(Position(30))]


def test_a_table_that_is_not_sent_is_an_error_that_names_it() -> None:
    stream = Stream(Continuity(frozenset({TABLE, "topics"})))
    assert stream.take(beat(10)) == []
    with pytest.raises(ConfigError, match=r"group astha do not send changes of topics: add"):
        stream.continuity.require_tables()


def test_records_from_before_a_table_was_sent_are_passed_over() -> None:
    """Otherwise a follower could never start: the log keeps them."""
    stream = Stream(Continuity(frozenset({TABLE, "topics"})))
    stream.continuity.resume("h", Position(10), 1)
    later = sender(1, "later", TABLE, "topics")
    assert stream.take(sent(10, 20), sent(20, 30)) == []
    found = stream.take(gap(30, later), sent(30, 40, later))
    assert [type(item) for item in found] == [Gap, Started, int]
    stream.continuity.require_tables()


def test_too_many_waiting_records_are_dropped_and_found_missing() -> None:
    size = len(sent(100, 110))
    stream = Stream(Continuity(TABLES, max_waiting_bytes=3 * size))
    stream.take(*[sent(10 * number, 10 * number + 10) for number in range(10, 14)])
    assert stream.continuity._waiting_bytes == 0
    assert [type(item) for item in stream.take(beat(120))] == [Gap, Started]
    assert stream.take(sent(140, 150), beat(150)) == [Started(Position(140)), 150]
