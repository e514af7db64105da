"""MettaGrid arenas: worlds, games as rows of tokens, and a scripted player (needs the extra `mettagrid`)."""
