"""Routes each transaction to the lanes that subscribe to its tables, as subscriptions.yaml says.

In: transactions. Out: for each lane those that concern it, with only the events of its own tables.
Guaranteed: one dictionary lookup per transaction; order is kept; a table without subscribers costs nothing.
"""
