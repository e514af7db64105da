"""Scripted players: lap times near the bound, equality in every kind of action, and frozen behaviour."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from env_checks import evaluate_on_plain_cpu
from kart_laps import PLACE, act, begun, columns, looks
from slipstream.contracts import Array
from slipstream.envs.kart.columns import DISTANCES, TICK_HZ
from slipstream.envs.kart.game import KART
from slipstream.envs.kart.game import game as kart
from slipstream.envs.kart.observation import INV_BEND, INV_WIDE
from slipstream.envs.kart.speed_profile import fastest_lap_seconds
from slipstream.envs.native.controls import KINDS
from slipstream.errors import ConfigError

FROZEN = {
    "expert": "1cf192e4b9aad0657c76042107e5536774bcd2f57e2463995b2029c0c061fb35",
    "cruiser": "594929ee76cfddc620255683aa50c9a57b6e5479537ece096de2f8c35ccfdf58",
}


def drive(player: str, envs: int, kind: str = "continuous", inside: float = 0.0) -> tuple[Array, list[Array], Array]:
    """Drive one lap on each of so many tracks; return seconds (NaN: not finished), driven paths, and time on grass.

    With `inside` the points to steer for are moved so far (in widths) to the inside of their bends, which are taken for
    wider by a fifth of that.
    """
    game, out = begun(envs, seed=21, actions=kind, action_repeat=4)
    seconds, grass, paths = np.full(envs, np.nan), np.zeros(envs), [[row] for row in columns(game, *PLACE)]
    driving = np.ones(envs, bool)
    while driving.any():
        if inside:
            ahead = looks(out.obs)
            share = np.clip(ahead[:, :, 2] * 20 / INV_BEND, -1, 1) * inside
            ahead[:, :, 1] += share * ahead[:, :, 3] / INV_WIDE / (np.array(DISTANCES) + 6.0)
            ahead[:, :, 2] *= 1 - inside / 5
        game.step(act(player, game, out, kind), out)
        places = columns(game, *PLACE)
        for env in np.flatnonzero(driving):
            if out.terminated[env] or out.truncated[env]:
                driving[env] = False
                if out.terminated[env]:
                    seconds[env] = len(paths[env]) * game.spec.step_seconds
            else:
                paths[env].append(places[env])
                grass[env] += game.column("grass")[env] / TICK_HZ
    return seconds, [np.array(path) for path in paths], grass


def test_the_expert_is_near_the_best_that_its_line_allows() -> None:
    """On 100 tracks the expert finishes, stays on the asphalt, and takes at most 1.05 times the bound."""
    seconds, paths, grass = drive("expert", 100)
    assert np.isfinite(seconds).all() and (grass == 0).all()
    ratio = seconds / [fastest_lap_seconds(path) for path in paths]
    assert 1.0 < ratio.mean() < 1.05 and ratio.max() < 1.15


def test_the_width_of_the_track_is_worth_several_percent() -> None:
    """The expert, modified to cut corners, is more than 3 % faster: there is a better line to learn."""
    centre, cut = drive("expert", 40)[0], drive("expert", 40, inside=0.6)[0]
    assert np.isfinite(cut).all() and cut.mean() < 0.97 * centre.mean()


def test_the_cruiser_is_slow_and_safe() -> None:
    """The cruiser finishes every track on the asphalt, much slower than the expert."""
    seconds, _, grass = drive("cruiser", 60)
    assert np.isfinite(seconds).all() and (grass == 0).all()
    assert seconds.mean() > 1.4 * drive("expert", 60)[0].mean()


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete"])
def test_the_expert_drives_with_choices_too(kind: str) -> None:
    """With three options for each control the expert still finishes every track."""
    seconds, _, grass = drive("expert", 40, kind)
    assert np.isfinite(seconds).all() and grass.mean() < 1


@pytest.mark.parametrize("name", list(KART.scripted))
def test_every_action_mode_gets_the_nearest_controls(name: str) -> None:
    """Discrete and multi-discrete actions mean the same, and are the nearest to the continuous ones."""
    _, out = begun(500, random_starts=1.0)
    actions = []
    for kind in KINDS:
        spec = kart.spec(actions=kind).action
        action = np.zeros((500, spec.parts), spec.dtype)
        kart.act(name, out.obs, kind, action)
        actions.append(action)
    table, parts, free = actions
    assert np.array_equal(np.stack(np.divmod(table[:, 0], 3), axis=1), parts)
    assert np.abs(free - (parts - 1)).max() <= 0.5 and (np.abs(free) <= 1).all()


def test_all_players_are_known() -> None:
    """The players are those whose behaviour is frozen, and the expert is the one that training clones."""
    assert set(KART.scripted) == set(FROZEN) and KART.expert == "scripted:expert"


def test_unknown_player() -> None:
    """A misspelt player is a ConfigError with the nearest name."""
    with pytest.raises(ConfigError, match=r"Unknown scripted player `expret`\. Did you mean `expert`\?"):
        kart.act("expret", np.zeros((1, kart.spec().obs.width), np.float32), "continuous", np.zeros((1, 2), np.float32))


def digest(player: str) -> str:
    """Hash 40 s of 100 envs, random starts among them, every tenth decision."""
    game, out = begun(100, seed=2024, random_starts=0.5)
    assert game.world is not None
    sha = hashlib.sha256(game.world.tobytes())
    for step in range(600):
        game.step(act(player, game, out), out)
        if step % 10 == 0:
            sha.update((game.state + np.float32(0.0)).tobytes())  # + 0: one kind of zero
            sha.update(game.numbers.tobytes())
    sha.update(game.world.tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("player", FROZEN)
def test_behaviour_is_frozen(player: str) -> None:
    """Laps of each player are bit for bit those of the frozen hash."""
    assert digest(player) == FROZEN[player]


@pytest.mark.slow
def test_another_cpu_drives_the_same_laps() -> None:
    """Compiled for a plain CPU without vector extensions, tracks and laps are the same to the bit."""
    assert evaluate_on_plain_cpu(__file__, "t.digest('expert')") == FROZEN["expert"]
