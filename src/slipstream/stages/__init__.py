"""The verbs: each stage takes settings and leaves its results on disk."""

STAGES = ("tune", "record", "clone", "train", "compete", "evaluate", "tournament", "report")
"""The stages of `run`, in order."""
