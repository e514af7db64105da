"""Vectors of environments: serial, in threads, in processes, or on a device."""
