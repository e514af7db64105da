"""Policies: layout of the parameters, networks, action distributions, and actors."""
