"""Decoded changes as typed events, grouped by the transaction that committed them.

In: rows before and after each change, from a source. Out: `Transaction` of `Event[Row]`.
Guaranteed: commit order, whole transactions, rows are the registry's own models.
"""

from astha.events.batch import EventBatch
from astha.events.event import Commit, Event, Operation
from astha.events.transaction import Transaction

__all__ = ["Commit", "Event", "Operation", "EventBatch", "Transaction"]
