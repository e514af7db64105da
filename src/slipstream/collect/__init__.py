"""Collecting: how rollouts are made, and how games are played."""
