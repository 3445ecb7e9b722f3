"""Changes of the registry on Kafka and MQTT, read by clients that know nothing of Astha.

The brokers are those of the tests: Kafka from its jars, Mosquitto installed or from its package.
"""

from __future__ import annotations

from deploy.demo.claims import counts, prints
from deploy.demo.machine import listens, no_java
from deploy.demo.story import Addresses, Chapter, Service, Step

_START_S = 300.0  # with the download


def kafka(addresses: Addresses) -> Chapter:
    return Chapter(
        "kafka",
        "Changes on Kafka",
        "A second daemon, of a group of its own, sends every change of the registry to a broker.",
        (
            Service(
                "python -m tests.servers.kafka", "kafka.log", lambda log: "Kafka: " in log, _START_S, optional=True
            ),
            Step(
                """\
cat > kafka.yaml <<END
components:
  kafka_sink:
    tables: [topics]
    settings: {bootstrap_servers: "$(sed -n 's/^Kafka: //p' kafka.log)"}
END"""
            ),
            _daemon("kafka", addresses.kafka),
            Step("astha topics create returns"),
            Step(
                """\
python - <<'END'
import json
from kafka import KafkaConsumer

broker = open("kafka.log").read().split()[-1]
consumer = KafkaConsumer(
    "astha.topics", bootstrap_servers=broker, auto_offset_reset="earliest", consumer_timeout_ms=30000
)
for record in consumer:
    change = json.loads(record.value)
    print(change["op"], change["source"]["table"], change["after"]["name"])
    if change["after"]["name"] == "returns":
        break
END""",
                (prints("topics returns", "Any Kafka consumer reads the change, in Debezium's envelope."),),
            ),
        ),
        no_java,
    )


def mqtt(addresses: Addresses) -> Chapter:
    status = f"astha status --server http://127.0.0.1:{addresses.mqtt}"
    return Chapter(
        "mqtt",
        "Changes on MQTT, and a broker that goes away",
        "The same for MQTT 5, as plain JSON. A subscriber gets what happens while it is connected.\n"
        "A component that can't work is disconnected: it delays no other one, and no changes are kept for it.",
        (
            Service(
                "python -m tests.servers.mosquitto",
                "mqtt.log",
                lambda log: "mqtt://" in log,
                _START_S,
                optional=True,
                pid="mqtt.pid",
            ),
            Step(
                """\
cat > mqtt.yaml <<END
components:
  mqtt_sink:
    tables: [topics]
    settings: {url: "$(grep mqtt:// mqtt.log)", format: json}
    lane: {health_interval_s: 1, breaker_reset_s: 1}
END"""
            ),
            _daemon("mqtt", addresses.mqtt),
            Service(
                """\
python -u - <<'END'
import asyncio, aiomqtt

async def main():
    broker = open("mqtt.log").read().split()[-1].removeprefix("mqtt://").split(":")
    async with aiomqtt.Client(broker[0], int(broker[1])) as client:
        await client.subscribe("astha/topics/#", qos=1)
        print("subscribed")
        async for message in client.messages:
            print(message.topic, message.payload.decode())

asyncio.run(main())
END""",
                "messages.log",
                lambda log: "subscribed" in log,
            ),
            Step("astha topics create refunds"),
            Step(
                "cat messages.log",
                (prints("astha/topics/insert/refunds", "Any MQTT client gets the change."),),
                until=True,
            ),
            Step("kill $(cat mqtt.pid)"),
            Step(
                status,
                (prints("mqtt_sink is broken: health check failed", "The sink's circuit is open, and says why."),),
                until=True,
                status=1,
            ),
            Step("astha topics create repairs"),
            Step(
                "astha status",
                (
                    prints("ready     yes"),
                    counts(r"^iceberg_updater +live ", 1, "The others go on: changes reach them as before."),
                ),
            ),
            Service(
                "python -m tests.servers.mosquitto $(sed 's/.*://' mqtt.log)",
                "mqtt-again.log",
                lambda log: "mqtt://" in log,
                most_lines=1,
            ),
            Step(
                status,
                (
                    prints("ready     yes"),
                    counts(
                        r"^mqtt_sink +live .* (?:[2-9]|\d\d)$",
                        1,
                        "The circuit has closed by itself: a second refresh brought what the sink had missed.",
                    ),
                ),
                until=True,
            ),
        ),
    )


def _daemon(group: str, port: int) -> Service:
    program = f"astha run --group {group} --subscriptions {group}.yaml --set server.port={port}"
    return Service(
        program, f"{group}-daemon.log", lambda log: "component is live" in log and listens(port), most_lines=0
    )
