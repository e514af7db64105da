"""Let soccer's scripted players meet, and print a table of scores with their intervals."""

from __future__ import annotations

import slipstream as ss

PLAYERS = ("random", "scripted:chaser", "scripted:keeper", "scripted:rule")
GAMES = 16

print(f"{'':<18}" + "".join(f"{name:>22}" for name in PLAYERS[:-1]))
for player in PLAYERS[1:]:
    cells = []
    for opponent in PLAYERS[: PLAYERS.index(player)]:
        result = ss.evaluate(player, "soccer", opponent=opponent, games=GAMES)
        cells.append(f"{result['score']:.2f} [{result['score_low']:.2f}, {result['score_high']:.2f}]")
    print(f"{player:<18}" + "".join(f"{cell:>22}" for cell in cells))
