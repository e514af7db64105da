"""Demonstrations on disk: written once, read from anywhere, larger than memory."""
