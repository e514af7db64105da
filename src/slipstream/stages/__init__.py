"""The verbs: each turns settings into something on disk."""

STORY = ("tune", "record", "clone", "train", "compete", "evaluate", "tournament", "report")
"""What `run` does, in this order."""
