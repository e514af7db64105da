"""Kart: a lap against the clock on a random track."""
