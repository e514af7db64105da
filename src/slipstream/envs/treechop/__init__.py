"""The third built-in game: logs to be gathered from trees, seen through the player's eyes, with MineRLTreechop's spaces."""
