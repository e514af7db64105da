"""Many environments at once."""
