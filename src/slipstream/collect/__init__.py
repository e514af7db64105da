"""Collectors: make rollouts, in this process, in workers or on a device."""
