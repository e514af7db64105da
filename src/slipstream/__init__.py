"""Slipstream trains game-playing agents: follow a demonstrator closely, then overtake it."""
