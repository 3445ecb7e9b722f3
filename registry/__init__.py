"""The registry: the relational source of truth whose changes the daemon follows.

In: verbs of `MetadataStore`. Out: typed rows, and a stream of committed changes that a source can follow.
Guaranteed: every verb is atomic, and behaves the same on every backend.
"""
