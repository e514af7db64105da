"""The kept agents of 0.1.0 still play the games that they played then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import slipstream as ss

OPPONENTS = Path(__file__).resolve().parents[2] / "benchmarks" / "opponents"
PLAYED: dict[str, Any] = json.loads((OPPONENTS / "games.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PLAYED)
def test_agents_of_earlier_versions_play_the_same_games(name: str) -> None:
    """An agent written by 0.1.0 loads and plays its 100 games against the scripted player with the same results."""
    then = PLAYED[name]
    now = ss.evaluate(
        f"run:{OPPONENTS / name}",
        then["env"],
        opponent=then["opponent"],
        games=then["games"],
        seed=then["seed"],
        **then["settings"],
    )
    for key, value in then["facts"].items():
        assert json.loads(json.dumps(now[key])) == value, key
