"""Adapters: environments of other libraries behind the `Vector` contract, and vectors for other trainers."""
