"""From an uploaded file to a registered one: upload intents, group commit, and cleanup of what was never registered."""
