"""The components: what is done with the registry's changes.

In: transactions of typed events. Out: effects (an Iceberg commit, a Spark job, a Kafka record).
Guaranteed: a component imports no other component, and the daemon imports none of them.
"""
