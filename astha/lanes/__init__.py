"""One bounded, ordered lane for each component: retry, breaker, health, refresh, ledger.

In: transactions that concern the component. Out: calls of its `Subscriber`, and what it has durably done.
Guaranteed: order, whole transactions, no lane ever waits for another, whatever is dropped is refreshed.
"""
