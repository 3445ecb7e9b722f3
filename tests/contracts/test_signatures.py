"""Every store takes the arguments of the contract: the same names, kinds and defaults, in the same order."""

from __future__ import annotations

import inspect

import pytest

from registry.cache import CachedStore
from registry.contract import BulkLoad, ConsistentRead, MetadataStore
from registry.forwarding import ForwardingStore
from registry.stores.cockroachdb import CockroachStore
from registry.stores.dynamodb.consistent_read import DynamoConsistentRead
from registry.stores.dynamodb.load import DynamoBulkLoad
from registry.stores.dynamodb.store import DynamoStore
from registry.stores.postgres import PostgresStore
from registry.stores.sql.consistent_read import SqlBulkLoad, SqlConsistentRead
from registry.stores.sqlite import SqliteStore
from tests.doubles.fault_points import FaultyRegistry
from tests.doubles.file_store import FileStore
from tests.doubles.memory_store import MemoryStore
from tests.doubles.registry import SmallRegistry

COMPLETE = (
    CockroachStore,
    DynamoStore,
    PostgresStore,
    SqliteStore,
    ForwardingStore,
    CachedStore,
    FaultyRegistry,
    FileStore,
    MemoryStore,
)
PARTIAL = (SmallRegistry,)
"""Doubles that implement only the verbs that their tests need."""

ADDED: dict[type, set[str]] = {CachedStore: {"at_least"}}
"""Optional arguments that a store offers beyond the contract."""


def _signatures(contract: type, store: type) -> dict[str, list[tuple[str, object, object]]]:
    """The arguments with which ``store`` defines each verb of ``contract``; a partial double may lack some."""
    verbs = {
        name
        for base in contract.__mro__
        for name, value in vars(base).items()
        if not name.startswith("_") and inspect.isfunction(value)
    }
    return {
        verb: [
            (one.name, one.kind, one.default)
            for one in inspect.signature(getattr(store, verb)).parameters.values()
            if one.name not in ADDED.get(store, ())
        ]
        for verb in sorted(verbs)
        if store not in PARTIAL or hasattr(store, verb)
    }


@pytest.mark.parametrize(
    ("store", "contract"),
    [
        *((store, MetadataStore) for store in (*COMPLETE, *PARTIAL)),
        (SqlConsistentRead, ConsistentRead),
        (DynamoConsistentRead, ConsistentRead),
        (SqlBulkLoad, BulkLoad),
        (DynamoBulkLoad, BulkLoad),
    ],
)
def test_arguments_are_those_of_the_contract(store: type, contract: type) -> None:
    expected, found = _signatures(contract, contract), _signatures(contract, store)
    assert found
    assert {verb: found[verb] for verb in found if found[verb] != expected[verb]} == {}


@pytest.mark.parametrize("store", ADDED)
def test_added_arguments_are_optional_keywords(store: type) -> None:
    for verb in dir(MetadataStore):
        if not verb.startswith("_"):
            parameters = inspect.signature(getattr(store, verb)).parameters
            for name in ADDED[store] & parameters.keys():
                one = parameters[name]
                assert (one.kind, one.default) == (inspect.Parameter.KEYWORD_ONLY, None), verb
