"""Whether the broker and the topics can be used, and since when not."""

from __future__ import annotations

from collections.abc import Sequence

from kafka.admin import KafkaAdminClient

from astha.brokers.kafka import close
from astha.subscribers import CheckResult, LoopClock, Retry
from components.kafka_sink.client import KafkaClients
from components.kafka_sink.errors import BrokerUnusable, TopicUnusable
from components.kafka_sink.settings import KafkaSinkSettings
from components.kafka_sink.topics import Topic, TopicSpec, ensure_topics, largest_record, missing_topics
from components.kafka_sink.worker import Worker


class BrokerHealth:
    """Has its own thread and connection: a delivery that waits does not delay a check."""

    def __init__(
        self,
        settings: KafkaSinkSettings,
        clients: KafkaClients,
        wanted: Sequence[TopicSpec],
        worker: Worker,
        clock: LoopClock,
    ) -> None:
        self._settings = settings
        self._clients = clients
        self._wanted = wanted
        self._worker = worker
        self._clock = clock
        self._admin: KafkaAdminClient | None = None
        self._outage_since: float | None = None
        self._tolerant = False
        self.topics: dict[str, Topic] = {}
        self.largest_record = settings.max_request_bytes
        self.trouble: str | None = None
        self.usable = False

    async def prepare(self) -> None:
        """Creates and checks the topics."""
        self.topics = await self._worker.run(self._describe)
        self._recover()

    async def check(self) -> bool:
        """Raises what is wrong. A short outage of a broker that was usable does not count."""
        try:
            topics = await self._worker.run(self._describe)
        except Retry as error:
            self.trouble = str(error)
            if isinstance(error, BrokerUnusable) and self._tolerated():
                return True
            self._tolerant = False
            raise
        known, self.topics = self.topics, topics
        self._recover()
        replaced = [name for name, topic in topics.items() if name in known and known[name].id != topic.id]
        if replaced:
            raise TopicUnusable(f"topic {', '.join(replaced)} was deleted and created again: all rows are sent again")
        return True

    async def inspect(self) -> CheckResult:
        """Connects and looks at the topics, without creating any."""
        try:
            missing = await self._worker.run(self._missing)
        except Retry as error:
            return CheckResult("Kafka", str(error), "correct the settings of this sink, or start the broker")
        servers = ", ".join(self._settings.bootstrap_servers)
        if not missing:
            return CheckResult("Kafka", f"the broker at {servers} has the {len(self._wanted)} topics of this sink")
        text = f"the broker at {servers} has no topic {', '.join(missing)}"
        if self._settings.create_topics:
            return CheckResult("Kafka", f"{text} yet: it is created at the start")
        return CheckResult("Kafka", text, "create it, or set `create_topics: true`")

    async def close(self) -> None:
        await self._worker.clean_up(self._disconnect)

    def _recover(self) -> None:
        self._outage_since, self._tolerant, self.trouble, self.usable = None, True, None, True

    def _tolerated(self) -> bool:
        now = self._clock.monotonic()
        if self._outage_since is None:
            self._outage_since = now
        return self._tolerant and now - self._outage_since < self._settings.outage_tolerance_s

    def _missing(self) -> list[str]:
        admin = self._clients.admin()
        try:
            return missing_topics(admin, self._settings, self._wanted)
        finally:
            close(admin)

    def _describe(self) -> dict[str, Topic]:
        try:
            if self._admin is None:
                self._admin = self._clients.admin()
            found = ensure_topics(self._admin, self._settings, self._wanted)
            self.largest_record = largest_record(self._admin, self._settings, list(found))
        except BaseException:
            self.usable = False
            self._disconnect()
            raise
        return found

    def _disconnect(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            close(admin)
