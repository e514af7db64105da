"""MettaGrid's arenas: worlds that reward, games as rows of tokens, a scripted walker (needs the extra `mettagrid`)."""
