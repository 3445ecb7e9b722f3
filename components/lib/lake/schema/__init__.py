"""Table schemas: their syntax for users, their JSON in the registry, and their evolution."""
