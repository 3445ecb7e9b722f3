"""The component API: everything that a component needs, by one import. Test doubles are in `astha.testing`.

In: events, one by one or by transaction; refreshes; health checks. Out: the component's own effect, or an error.
Guaranteed: commit order, whole transactions if it takes them, one call at a time.

What a component raises decides what happens next:

- `Reject`: this event can never be processed. It is dropped without retries, and a refresh follows.
- `Retry`: not now. Retried with backoff, at most `attempts` times; after that `on_exhausted` applies (LanePolicy).
- `Invalid`, from a call of the registry, is treated like `Reject`; other registry errors are retried.
- Any other exception is retried too, and its traceback is logged. MemoryError and SystemExit open the circuit at once.
- `ConfigError` or ValueError from ``create``: the settings are wrong, and the daemon does not start.

docs/how-to/write-a-component.md leads from an empty file to a tested component.
"""

from astha.backoff import Backoff
from astha.clock import LoopClock
from astha.errors import ComponentError, ConfigError, DeliveryError, Reject, Retry
from astha.events import Commit, Event, Operation, Transaction
from astha.subscribers.base import Component, handles
from astha.subscribers.checks import Checkable, CheckResult
from astha.subscribers.context import ComponentContext, ComponentState, LakeSettings, S3Settings
from astha.subscribers.contract import (
    BatchSubscriber,
    EventSubscriber,
    RegistryWriter,
    ResumesAtPosition,
    Startable,
    Stoppable,
    Subscriber,
    TransactionSubscriber,
)
from astha.subscribers.metrics import Metric, ReportsMetrics
from astha.subscribers.operations import OffersOperations, OperationRefused
from astha.subscribers.problems import Problem, ReportsProblems
from astha.subscribers.sqlite_state import SqliteState
from astha.subscribers.work import ReportsWork, Work
from astha.tasks import BackgroundTasks
from astha.tracing import Span
from registry.areas import Area
from registry.contract import ConsistentRead, MetadataStore
from registry.errors import AlreadyExists, Conflict, Invalid, NotFound, RegistryError, Unavailable
from registry.json_text import JsonText, JsonValue, parse_json, parse_json_as
from registry.models import (
    PUBLISHED,
    Agent,
    ConsumerGroup,
    ConsumerOffset,
    IcebergCommit,
    LakeTable,
    Partition,
    PartitionLease,
    Row,
    Segment,
    TableDeleteFile,
    TableFile,
    TableMetadata,
    TableSnapshot,
    TableStats,
    Topic,
)
from registry.position import Position, SnapshotVisibility

__all__ = [
    # a component: the base class, or the protocols that it fits
    "Component", "handles",
    "Subscriber", "EventSubscriber", "TransactionSubscriber", "BatchSubscriber", "Startable", "Stoppable",
    "ResumesAtPosition",
    # durable state with exactly-once effect
    "SqliteState",
    # its context
    "ComponentContext", "ComponentState", "LakeSettings", "S3Settings", "MetadataStore", "LoopClock", "Span",
    # what it receives
    "Event", "Operation", "Commit", "Transaction", "Position", "ConsistentRead", "SnapshotVisibility",
    # published rows: streams, then the lake
    "Row", "PUBLISHED",
    "Topic", "Partition", "Segment", "ConsumerGroup", "ConsumerOffset", "Agent", "PartitionLease",
    "LakeTable", "TableMetadata", "TableFile", "TableStats", "TableSnapshot", "IcebergCommit",
    "TableDeleteFile",
    # JSON columns
    "JsonText", "JsonValue", "parse_json", "parse_json_as",
    # errors: the component's, then the registry's
    "Reject", "Retry", "DeliveryError", "ConfigError", "ComponentError",
    "RegistryError", "NotFound", "AlreadyExists", "Conflict", "Invalid", "Unavailable",
    # what it reports
    "Metric", "ReportsMetrics", "Problem", "ReportsProblems", "Work", "ReportsWork", "Checkable", "CheckResult",
    "Area", "RegistryWriter",
    # what an operator can request
    "OffersOperations", "OperationRefused",
    # background work
    "BackgroundTasks", "Backoff",
]  # fmt: skip
