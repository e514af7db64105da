"""Policies: layout of the parameters, networks, action distributions, and what acts with them."""
