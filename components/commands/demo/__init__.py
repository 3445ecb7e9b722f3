"""`make demo`: each part of the product at work, in the order of an event's path. Nothing is left behind.

In: nothing but a temporary directory. Out: what was done, as tables. Nothing imports this package.
"""
