"""The second built-in game: a lap against the clock on tracks that are never the same."""
