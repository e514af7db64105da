"""Stages: what can be done, one verb per file; they meet only on disk."""
