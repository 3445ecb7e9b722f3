"""Our encoding of records against kafka-python's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner import murmur2
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from components.kafka_sink.record_encoding import encode_headers, encode_record, partition_index

RECORDS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=200),
        st.none() | st.binary(max_size=20_000),
        st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=100)), max_size=5),
    ),
    min_size=1,
    max_size=5,
)


@given(RECORDS)
def test_kafka_pythons_builder_writes_the_same_bytes(
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]],
) -> None:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for number, (key, value, headers) in enumerate(records):
        builder.append(number, 1, key, value, headers)
    encoded = b"".join(
        encode_record(number, key, value, encode_headers(headers))
        for number, (key, value, headers) in enumerate(records)
    )
    whole = bytes(builder.build())
    assert whole[DefaultRecordBatchBuilder.header_size_in_bytes() :] == encoded
    (batch,) = MemoryRecords(whole)
    assert [(record.key, record.value, record.headers) for record in batch] == records


@given(st.binary(max_size=70), st.integers(1, 50))
def test_the_partition_is_that_of_kafkas_clients(key: bytes, partitions: int) -> None:
    assert partition_index(key, partitions) == (murmur2(key) & 0x7FFFFFFF) % partitions
