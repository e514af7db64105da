"""The run directory, metrics, checkpoints, reports and the display."""
