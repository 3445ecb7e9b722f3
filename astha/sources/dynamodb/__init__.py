"""Reads the commit log of a registry in DynamoDB.

Every commit writes an entry with its number, so a query of the entries after a number returns whole transactions in
order (decision 0035). DynamoDB removes entries after a day. It must not be imported without its extra.
"""
