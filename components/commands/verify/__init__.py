"""Verify: whether the registry, Iceberg and storage say the same; equal, or every difference.

In: the registry, a catalog, storage, all of them in use. Out: a report. Nothing is changed, but statistics on demand.
Guaranteed: what is only on its way is no difference, and what is a difference is named with cause and remedy.
"""
