from __future__ import annotations

from astha.events import EventBatch, Transaction
from astha.routing.router import Router
from registry.position import Position
from tests.doubles.registry import GROUPS, TOPICS, SmallRegistry, group, topic


class Basket:
    def __init__(self, *tables: str) -> None:
        self.tables = frozenset(tables)
        self.offered: list[Transaction] = []
        self.batches = 0
        self.reached = Position(0)

    def offer(self, run: EventBatch) -> None:
        self.batches += 1
        self.offered += run.transactions

    def passed(self, position: Position) -> None:
        assert position >= self.reached
        self.reached = position


def names(basket: Basket) -> list[list[str]]:
    return [[getattr(event.data, event.data.key[0]) for event in item.events] for item in basket.offered]


def test_each_lane_receives_only_events_of_its_own_tables() -> None:
    registry = SmallRegistry()
    groups, topics, both, other = Basket(GROUPS), Basket(TOPICS), Basket(GROUPS, TOPICS), Basket("agents")
    router = Router([groups, topics, both, other])
    router.route([
        registry.commit(group("a"), topic("b"), group("c")),
        registry.commit(topic("d")),
        registry.commit(group("e")),
    ])  # fmt: skip
    assert names(groups) == [["a", "c"], ["e"]]
    assert names(topics) == [["b"], ["d"]]
    assert names(both) == [["a", "b", "c"], ["d"], ["e"]]
    assert names(other) == []
    assert groups.offered[0].tables == {GROUPS}
    assert router.tables == {GROUPS, TOPICS, "agents"}


def test_transactions_received_together_are_offered_together() -> None:
    registry, basket = SmallRegistry(), Basket(GROUPS)
    Router([basket]).route([registry.commit(group("a")), registry.commit(group("b"))])
    assert basket.batches == 1


def test_a_whole_transaction_is_not_copied() -> None:
    registry, one, two = SmallRegistry(), Basket(GROUPS), Basket(GROUPS)
    transaction = registry.commit(group("a"))
    Router([one, two]).route([transaction])
    assert one.offered[0] is two.offered[0] is transaction


def test_every_lanes_position_moves_even_without_transactions() -> None:
    registry, one, two = SmallRegistry(), Basket(GROUPS), Basket(TOPICS)
    router = Router([one, two])
    router.route([registry.commit(group("a"))])
    assert one.reached == two.reached == registry.last
    router.passed(Position(500))
    assert one.reached == two.reached == 500


def test_a_table_without_subscribers_queues_nothing() -> None:
    registry, basket = SmallRegistry(), Basket(GROUPS)
    router = Router([basket])
    for number in range(100):
        router.route([registry.commit(topic(f"t{number}"))])
    assert basket.offered == []


def test_unlisted_tables_reach_only_their_subscribers() -> None:
    registry, one, two = SmallRegistry(), Basket(GROUPS), Basket(TOPICS)
    transaction = registry.commit(group("a"), topic("b"))
    transaction.unlisted = frozenset({GROUPS})
    Router([one, two]).route([transaction])
    assert one.offered[0].unlisted == {GROUPS}
    assert two.offered[0].unlisted == frozenset()


def test_one_lookup_per_transaction() -> None:
    """The plan for a set of tables is made once, however many transactions and lanes there are."""
    registry = SmallRegistry()
    planned: list[frozenset[str]] = []

    class Counting(Router):
        def _plan(self, tables: frozenset[str]) -> list[tuple[object, bool]]:  # type: ignore[override]
            planned.append(tables)
            return super()._plan(tables)  # type: ignore[return-value]

    router = Counting([Basket(GROUPS) for _ in range(50)])
    for number in range(1_000):
        router.route([registry.commit(group(f"g{number}"))])
    assert planned == [frozenset({GROUPS})]


def test_recent_commits_are_remembered_until_another_history_begins() -> None:
    registry = SmallRegistry()
    router = Router([Basket(GROUPS)])
    router.route([registry.commit(group("a")), registry.commit(topic("b"))])
    assert [commit.position for commit in router.recent()] == [10, 20]
    router.start_over()
    assert list(router.recent()) == []
