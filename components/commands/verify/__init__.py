"""Verify: compares the registry, Iceberg and storage, and reports every difference.

In: the registry, a catalog and storage, all of them in use. Out: a report. Nothing is changed, except statistics on
demand.
Guaranteed: in-flight differences are ignored; every other difference is reported with its likely cause and a remedy.
"""
