"""Tiny games with a known optimum, for tests and examples."""
