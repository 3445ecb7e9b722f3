"""`make demo`: the whole of Astha at work on one machine, in a minute or two.

It may import everything and nothing imports it: that is why it lies beside the packages and not in one. Each part
of the product shows itself in a module of its own; `python -m deploy.demo` plays them in the order of an event's path.
"""
