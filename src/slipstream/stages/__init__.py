"""The stages behind the verbs: each takes settings and writes its results to disk."""

STAGES = ("tune", "record", "clone", "train", "compete", "evaluate", "tournament", "report")
"""The stages of `run`, in order."""
