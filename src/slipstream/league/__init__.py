"""Leagues: pool, matchmaking, snapshots, exploiters, ratings and ladders."""
