"""Recall: a cue at the start, a wait, and a question; a policy without memory scores 0 on average.

The observation is three numbers: the cue (one-hot, in the first step only) and the go signal, 1 in the last step. The
action in the last step earns 1 if it is the cue, else -1; all other actions earn 0. The optimum is 1 per episode.
"""

from __future__ import annotations

from functools import partial

from slipstream.contracts import ActionSpec, Array, EnvSpec, vector_obs
from slipstream.envs.game import Labels
from slipstream.envs.tiny.vector import AGE, KEY, TinyVector, pick
from slipstream.system.numba_compile import compiled, inlined

CUES = 2
WAIT = CUES
"""The third action of the masked variant: the only one allowed before the question, and masked there."""


@inlined
def cue_of(clock: Array) -> int:
    """Return the cue of an env's episode."""
    return pick(clock[KEY], 0, 0, CUES)


@compiled
def write_observations(delay: int, clock: Array, chosen: Array, vectors: Array, rows: Array, mask: Array) -> None:
    """Write the observations: the cue, nothing, or the go signal."""
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
def write_rewards(delay: int, clock: Array, action: Array, reward: Array) -> None:
    """Write the reward for the answer."""
    for env in range(clock.shape[0]):
        reward[env] = 0.0
        if clock[env, AGE] == delay + 1:
            reward[env] = 1.0 if action[env, 0] == cue_of(clock[env]) else -1.0


def make(variant: str, envs: int, *, first: int = 0, seed: int = 0) -> TinyVector:
    """Make the game with `variant` steps between cue and question; `masked` has 8 and an action mask."""
    masked = variant == "masked"
    delay = 8 if masked else int(variant)
    spec = EnvSpec(
        name="recall" if variant == "8" else f"recall:{variant}",
        obs=vector_obs(CUES + 1),
        action=ActionSpec("discrete", (CUES + masked,), masked=masked),
        exact=True,
    )
    observe, reward = partial(write_observations, delay), partial(write_rewards, delay)
    return TinyVector(spec, envs, delay + 2, observe, reward, first=first, seed=seed)


def labels(spec: EnvSpec) -> Labels:
    """The names of the actions and of the observation's three numbers."""
    cues = tuple(f"cue {cue}" for cue in range(CUES))
    return Labels(("answer",), ((*cues, "wait")[: spec.action.sizes[0]],), (*cues, "go"))
