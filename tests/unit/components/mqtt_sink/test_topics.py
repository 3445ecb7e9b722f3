from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astha.subscribers import ConsumerOffset, Segment, Topic
from astha.testing import make_row
from components.mqtt_sink.topics import Topics

TOPICS = Topics("site/astha", keys=True)


def test_each_column_of_the_key_is_a_level() -> None:
    row = make_row(ConsumerOffset, group_id="readers", topic="orders", partition_id=3)
    assert TOPICS.change("update", row) == "site/astha/consumer_offsets/update/readers/orders/3"
    assert TOPICS.change("read", make_row(Segment, id=7)) == "site/astha/segments/read/7"


def test_keys_can_be_left_out() -> None:
    assert Topics("a", keys=False).change("insert", make_row(Topic, name="orders")) == "a/topics/insert"


def test_a_key_that_is_longer_than_a_topic_is_left_out() -> None:
    assert TOPICS.change("insert", make_row(Topic, name="ü" * 20_000)) == "site/astha/topics/insert"


@given(st.text(max_size=50))
def test_a_key_fills_one_level(name: str) -> None:
    topic = TOPICS.change("insert", make_row(Topic, name=name))
    *levels, last = topic.split("/")
    assert levels == ["site", "astha", "topics", "insert"]
    assert last.isascii()
    assert not set(last) & set("+#$\0/")
    assert unquote(last) == name


@pytest.mark.parametrize("name", ["a/b", "+", "#"])
def test_names_of_components_and_groups_fill_one_level(name: str) -> None:
    assert TOPICS.component(name).count("/") == 3
    assert TOPICS.daemon(name).count("/") == 3
    assert not set(TOPICS.component(name)) & set("+#")
