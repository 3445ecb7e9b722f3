"""One partition's way from the plan to the swap: plan, claim, intents, merge, compare, swap, finish.

In: groups of files, as they were read. Out: a swap in the registry for each, and an `Outcome` that tells of it.
Guaranteed: an input is gone only in the transaction that brings its rows back in another file; whatever interrupts a
job, at any line, leaves the table as it was and nothing in storage that the cleaner does not find.
"""
