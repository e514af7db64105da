"""Games: the registry, the built-in soccer, and adapters for other people's environments."""
