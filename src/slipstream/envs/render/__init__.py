"""Drawing games: shapes, scenes, and replays as video."""
