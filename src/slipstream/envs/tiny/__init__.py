"""Tiny games with a known optimum: what a policy must have learned to win them is plain."""
