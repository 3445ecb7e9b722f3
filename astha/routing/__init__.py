"""Who gets what: subscriptions.yaml, read once, and a table from which every transaction finds its lanes.

In: transactions. Out: for each lane those that concern it, with only its own tables' events.
Guaranteed: one dictionary look-up a transaction; order is kept; a table nobody subscribes to costs nothing.
"""
