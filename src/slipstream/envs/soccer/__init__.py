"""The built-in game: car soccer seen from above."""
