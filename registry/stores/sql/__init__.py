"""What the SQL backends share: one module for each group of verbs, written once in SQLAlchemy Core.

A backend adds how to connect, how to begin, how to hand over many rows at once, and how to read its errors.
"""
