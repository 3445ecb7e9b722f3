"""The broker that other tests rely on."""

from __future__ import annotations

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from tests.servers.kafka import KafkaBroker


def test_records_survive_a_kill_on_the_same_port(own_kafka: KafkaBroker) -> None:
    address = own_kafka.address
    with KafkaAdminClient(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic("survivors", 1, 1)])
    with KafkaProducer(bootstrap_servers=address, acks="all") as producer:
        producer.send("survivors", b"one").get(30)
        own_kafka.restart()
        assert own_kafka.address == address
        producer.send("survivors", b"two").get(30)
    with KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", group_id=None) as consumer:
        consumer.assign([TopicPartition("survivors", 0)])
        assert [next(consumer).value, next(consumer).value] == [b"one", b"two"]
