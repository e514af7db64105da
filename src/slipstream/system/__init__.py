"""Processes, shared memory, compiled kernels, random streams and the machine."""
