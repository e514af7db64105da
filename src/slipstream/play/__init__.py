"""Games between agents: the engine, evaluation games, recording and replays."""
