"""Agents: random, scripted and trained."""
