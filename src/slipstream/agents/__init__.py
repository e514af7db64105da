"""Anything that acts: random, scripted, trained."""
