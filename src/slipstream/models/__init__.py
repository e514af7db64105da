"""Policies: shapes, weights, kernels and their torch reference."""
