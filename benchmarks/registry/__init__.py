"""The registry: its caches, the segment index and the bulk verbs, against dictionaries, COPY and executemany."""
