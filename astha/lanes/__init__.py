"""One bounded, ordered lane per component: delivery with retries, circuit breaker, health, refresh, ledger.

In: the transactions that concern the component. Out: calls of its `Subscriber`, and its acknowledged position.
Guaranteed: order, whole transactions, no lane waits for another, whatever is dropped is refreshed.
"""
