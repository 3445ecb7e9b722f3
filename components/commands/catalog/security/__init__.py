"""Who may do what in the catalog.

    access -> login -> tokens, login_limit; grants

A request enters with a bearer token, or none, and leaves with the grants of its caller. Guaranteed: no handler runs for
a caller without the grants that its route declares.
"""
