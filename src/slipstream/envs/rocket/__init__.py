"""Rocket League by RocketSim: its arena, games as rows, rewards and a scripted player (needs the extra `rocket`)."""
