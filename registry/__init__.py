"""The registry: the one source of truth that everything else tails.

In: verbs (`MetadataStore`). Out: typed rows, and a stream of committed changes that a source can follow.
Guaranteed: a verb happens whole or not at all, and the same verb means the same thing on every backend.
"""
