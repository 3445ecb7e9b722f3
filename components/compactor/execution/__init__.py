"""One job: claim, then per group upload intents, merge, result check and swap, then the end in the journal.

In: a `CompactionSpec`. Out: a swap in the registry for each group, and a `JobOutcome`.
Guaranteed: an input is removed only in the transaction that adds its rows in another file; an interruption at any line
leaves the table as it was, and nothing in storage that the cleaner does not find.
"""
