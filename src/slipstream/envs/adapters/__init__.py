"""Adapters: other people's environments seen as rows."""
