"""The verbs that the SQL backends share: one module per group of verbs, written once in SQLAlchemy Core.

A backend adds how to connect, how to begin a transaction, how to bind many rows at once, and how to translate errors.
"""
