"""Implementations of `registry.contract.MetadataStore`, one module per backend.

In: verbs. Out: rows, or errors of `registry.errors`. Guaranteed: the conformance suite in tests/contracts.
"""
