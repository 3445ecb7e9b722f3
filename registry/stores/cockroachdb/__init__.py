"""The registry in CockroachDB: the shared SQL verbs, in serializable transactions that are repeated if they fail."""

from registry.stores.cockroachdb.store import CockroachStore

__all__ = ["CockroachStore"]
