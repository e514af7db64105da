"""The third built-in game: logs to gather, seen through the player's eyes, with the spaces of MineRLTreechop."""
