"""Games: the registry, the built-in games, and adapters for environments of other libraries."""
