"""`astha tables`: create, list, describe, alter and drop tables of the lake.

In: command lines and definition files. Out: rows of `tables` and `table_metadata`, which components react to.
Guaranteed: an invalid definition or an unreachable location is refused before anything is written, with a remedy.
"""
