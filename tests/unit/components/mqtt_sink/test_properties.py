from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from components.mqtt_sink.properties import pack

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)


def by_the_library(content_type: str, named: list[tuple[str, str]]) -> bytes:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]  # the library has no types here
    properties.PayloadFormatIndicator = 1
    properties.ContentType = content_type
    for pair in named:
        properties.UserProperty = pair
    return bytes(properties.pack())  # type: ignore[no-untyped-call]  # as above


@given(_TEXT, st.lists(st.tuples(_TEXT, _TEXT), max_size=20))
def test_the_bytes_are_those_of_the_library(content_type: str, named: list[tuple[str, str]]) -> None:
    packed = pack(content_type, [(name, value.encode()) for name, value in named]).pack()
    assert packed == by_the_library(content_type, named)


def test_a_value_that_is_too_long_is_left_out() -> None:
    packed = pack("text/plain", [("long", b"x" * 65_536), ("short", b"y")]).pack()
    assert packed == by_the_library("text/plain", [("short", "y")])
