"""`astha tables`: tables of the lake, made, shown, changed and dropped.

In: what people write. Out: rows of `tables` and `table_metadata`, which the components follow.
Guaranteed: what can't be stored or reached is refused before anything is written, with what to do instead.
"""
