"""Registration of uploaded files: upload intents, group commit, and cleanup of objects that were never registered."""
