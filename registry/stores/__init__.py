"""Implementations of `registry.contract.MetadataStore`, one module a backend.

In: verbs. Out: rows, or errors of `registry.errors`. Guaranteed: the conformance suite in tests/contracts.
"""
