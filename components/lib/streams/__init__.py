"""Streams: topics of records in objects, written by agents, read by consumers and consumer groups."""
