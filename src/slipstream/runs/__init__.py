"""The run directory: everything that training leaves on disk or on the screen."""
