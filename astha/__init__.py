"""Astha: the daemon that pushes every committed change of the registry to the components, in order.

In: the registry's changes. Out: typed events, delivered to each component.
Guaranteed: imports go one way, components -> astha -> registry; no sink technology is known here.
"""
