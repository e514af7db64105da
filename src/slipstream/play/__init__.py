"""Games between agents: played, recorded, and kept as replays."""
