"""Maintenance: retention deletes old segments, merging joins small ones."""
