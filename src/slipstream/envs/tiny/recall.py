"""Recall: a cue at the start, a wait, and a question; without a memory nobody earns more than chance.

The observation is three numbers: 1 at the place of the cue in the first step, then nothing, then a 1 that says go.
The action in the step that says go earns 1 if it is the cue, else -1; all others earn nothing. The optimum is 1.
"""

from __future__ import annotations

from functools import partial

from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.envs.tiny.scenes import AGE, KEY, Scenes, pick
from slipstream.system.numba_compile import compiled, inlined

CUES = 2
WAIT = CUES
"""The third action of the masked game: the only one that is allowed before the question, and not there."""


@inlined
def cue_of(clock: Array) -> int:
    """Return the cue of an env's episode."""
    return pick(clock[KEY], 0, 0, CUES)


@compiled
def show(delay: int, clock: Array, chosen: Array, vectors: Array, rows: Array, mask: Array) -> None:
    """Show the cue, nothing, or the question."""
    for env in range(clock.shape[0]):
        if chosen[env] == 0:
            continue
        go = clock[env, AGE] == delay + 1
        for cue in range(CUES):
            vectors[env, cue] = clock[env, AGE] == 0 and cue == cue_of(clock[env])
        vectors[env, CUES] = go
        if mask.shape[1] > 0:
            for cue in range(CUES):
                mask[env, cue] = go
            mask[env, WAIT] = not go


@compiled
def pay(delay: int, clock: Array, action: Array, reward: Array) -> None:
    """Pay for the answer."""
    for env in range(clock.shape[0]):
        reward[env] = 0.0
        if clock[env, AGE] == delay + 1:
            reward[env] = 1.0 if action[env, 0] == cue_of(clock[env]) else -1.0


def make(variant: str, envs: int, *, first: int = 0, seed: int = 0) -> Scenes:
    """Make the game with so many steps between cue and question, or the `masked` one with 8."""
    masked = variant == "masked"
    delay = 8 if masked else int(variant)
    spec = EnvSpec(
        name="recall" if variant == "8" else f"recall:{variant}",
        obs=vector_obs(CUES + 1),
        action=ActionSpec("discrete", (CUES + masked,), masked=masked),
        exact=True,
    )
    return Scenes(spec, envs, delay + 2, partial(show, delay), partial(pay, delay), first=first, seed=seed)
