"""Scripted players: lap times near the bound, equality in every kind of action, and frozen behaviour."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from env_checks import evaluate_on_plain_cpu
from slipstream.contracts import Array, empty_rows
from slipstream.envs.kart import layout as at
from slipstream.envs.kart import scripted
from slipstream.envs.kart.actions import SPECS, TABLE
from slipstream.envs.kart.game import Kart
from slipstream.envs.kart.speed_profile import fastest_lap_seconds
from slipstream.errors import ConfigError

FROZEN = {
    "expert": "9a6fc421a5f89cff22f23dd565804bbbed0bc79e0332f2d6f4d73d04f1610dac",
    "cruiser": "7f524526822578782afcfabe2286b0097aefbf191c8dca3baf8afb326aa5bb9e",
}


def drive(player: str, envs: int, kind: str = "continuous", inside: float = 0.0) -> tuple[Array, list[Array], Array]:
    """Drive one lap on each of so many tracks; return seconds (NaN: not finished), driven paths, and time on grass.

    With `inside` the points to steer for are moved so far (in widths) to the inside of their bends, which are taken for
    wider by a fifth of that.
    """
    game = Kart(envs, seed=21, actions=kind, action_repeat=4)
    out, action = empty_rows(game.spec, envs), np.zeros((envs, game.spec.action.parts), game.spec.action.dtype)
    game.reset(out)
    seconds, grass, paths = np.full(envs, np.nan), np.zeros(envs), [[row[:2].copy()] for row in game.state]
    driving = np.ones(envs, bool)
    while driving.any():
        obs = out.obs.copy()
        if inside:
            ahead = obs[:, at.O_AHEAD :].reshape(envs, at.LOOKS, at.AHEAD_SIZE)
            share = np.clip(ahead[:, :, 2] * 20 / float(at.INV_BEND), -1, 1) * inside
            ahead[:, :, 1] += share * ahead[:, :, 3] / float(at.INV_WIDE) / (np.array(at.DISTANCES) + 6.0)
            ahead[:, :, 2] *= 1 - inside / 5
        scripted.act(player, obs, kind, action)
        game.step(action, out)
        for env in np.flatnonzero(driving):
            if out.terminated[env] or out.truncated[env]:
                driving[env] = False
                if out.terminated[env]:
                    seconds[env] = len(paths[env]) * game.spec.step_seconds
            else:
                paths[env].append(game.state[env, :2].copy())
                grass[env] += game.state[env, at.GRASS] / at.TICK_HZ
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


@pytest.mark.parametrize("name", scripted.SCRIPTED)
def test_every_action_mode_gets_the_nearest_controls(name: str) -> None:
    """Discrete and multi-discrete actions mean the same, and are the nearest to the continuous ones."""
    game = Kart(500, random_starts=1.0)
    out = empty_rows(game.spec, 500)
    game.reset(out)
    table, parts, free = (np.zeros((500, spec.parts), spec.dtype) for spec in SPECS.values())
    for kind, action in zip(SPECS, (table, parts, free), strict=True):
        scripted.act(name, out.obs, kind, action)
    assert np.array_equal(TABLE[table[:, 0]], parts - 1)
    assert np.abs(free - (parts - 1)).max() <= 0.5 and (np.abs(free) <= 1).all()


def test_unknown_player() -> None:
    """A misspelt player is a ConfigError with the nearest name."""
    with pytest.raises(ConfigError, match=r"Unknown scripted player `expret`\. Did you mean `expert`\?"):
        scripted.act("expret", np.zeros((1, at.OBS_SIZE), np.float32), "continuous", np.zeros((1, 2), np.float32))


def digest(player: str) -> str:
    """Hash 40 s of 100 envs, random starts among them, every tenth decision."""
    game = Kart(100, seed=2024, random_starts=0.5)
    out, action = empty_rows(game.spec, 100), np.zeros((100, 2), np.float32)
    game.reset(out)
    sha = hashlib.sha256(game.tracks.tobytes())
    for step in range(600):
        scripted.act(player, out.obs, "continuous", action)
        game.step(action, out)
        if step % 10 == 0:
            sha.update((game.state + np.float32(0.0)).tobytes())  # + 0: one kind of zero
            sha.update(game.clock.tobytes())
    sha.update(game.tracks.tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("player", FROZEN)
def test_behaviour_is_frozen(player: str) -> None:
    """Laps of each player are bit for bit those of the frozen hash."""
    assert digest(player) == FROZEN[player]


@pytest.mark.slow
def test_another_cpu_drives_the_same_laps() -> None:
    """Compiled for a plain CPU without vector extensions, tracks and laps are the same to the bit."""
    assert evaluate_on_plain_cpu(__file__, "t.digest('expert')") == FROZEN["expert"]
