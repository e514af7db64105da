"""Demonstrations that others recorded, brought into our own format."""
