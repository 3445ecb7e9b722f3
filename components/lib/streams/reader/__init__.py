"""From an offset to records."""
