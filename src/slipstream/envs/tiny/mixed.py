"""Mixed: an image, a vector and tokens at once, each of which answers one of three questions.

The answers are the quarter of the image that has the bright square, the index of the largest of four numbers, and the
feature of the present token with the highest value. Each right answer earns 1/3 in each of 8 steps; the optimum is 8.
In `multi` an action chooses each answer from four options. In `continuous` it gives each answer as a number in
[-1, 1], and the reward falls with the distance. In `hybrid` the first answer is chosen and the others are numbers, as
mixed actions. `team` has two agents with observations of their own, and an action
mask that forbids one wrong answer to each question.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from slipstream.contracts import ActionSpec, Array, EnvSpec, ObsField, ObsSpec
from slipstream.envs.game import Labels
from slipstream.envs.tiny.pixels import LENGTH, brightest_quarter, paint, quarter_of
from slipstream.envs.tiny.vector import AGE, KEY, TinyVector, pick, share
from slipstream.system.numba_compile import compiled, inlined

PARTS, OPTIONS = 3, 4
SIDE, TOKENS, ABSENT = 12, 6, 255
OBS = ObsSpec(
    (
        ObsField("vector", "vector", (OPTIONS,)),
        ObsField("image", "image", (SIDE, SIDE, 1)),
        ObsField("tokens", "tokens", (TOKENS, 3)),
    )
)
IMAGE, TOKEN = OBS.places["image"][1], OBS.places["tokens"][1]
"""The bytes at which image and tokens start."""
COUNT, WINNER, ANSWER, NUMBER, BARRED, EACH = 4, 5, 6, 8, 12, 16
"""Indices of the random numbers of a step (0 to 2 are the image's); each token takes three from EACH on."""
SPECS = {
    "multi": ActionSpec("multi_discrete", (OPTIONS,) * PARTS),
    "continuous": ActionSpec("continuous", (), (-1.0,) * PARTS, (1.0,) * PARTS),
    "hybrid": ActionSpec("mixed", (OPTIONS,), (-1.0,) * (PARTS - 1), (1.0,) * (PARTS - 1)),
    "team": ActionSpec("multi_discrete", (OPTIONS,) * PARTS, masked=True),
}


@inlined
def answer_of(key: int, step_key: int, part: int) -> int:
    """Return the right answer to one of the three questions."""
    if part == 0:
        return quarter_of(key, step_key)
    return pick(key, step_key, ANSWER + part - 1, OPTIONS)


@inlined
def aim(answer: int) -> float:
    """Return an answer as a number in [-1, 1]."""
    return (answer * 2 + 1) / OPTIONS - 1.0


@inlined
def place_tokens(key: int, step_key: int, tokens: Array) -> None:
    """Write two to six tokens, one of which has the highest value; the others are absent."""
    count = 2 + pick(key, step_key, COUNT, TOKENS - 1)
    winner = pick(key, step_key, WINNER, count)
    for token in range(TOKENS):
        place, feature, value = ABSENT, ABSENT, ABSENT
        if token < count:
            each = EACH + 3 * token
            place = pick(key, step_key, each, SIDE * SIDE)
            feature = pick(key, step_key, each + 1, OPTIONS)
            value = pick(key, step_key, each + 2, 100)
        if token == winner:
            feature = answer_of(key, step_key, 2)
            value += 120
        tokens[3 * token], tokens[3 * token + 1], tokens[3 * token + 2] = place, feature, value


@compiled
def write_observations(agents: int, clock: Array, chosen: Array, vectors: Array, rows: Array, mask: Array) -> None:
    """Write the observation and the mask of every agent of the chosen envs."""
    for row in range(rows.shape[0]):
        own = clock[row // agents]
        if chosen[row // agents] == 0:
            continue
        key, step_key = own[KEY], own[AGE] * agents + row % agents
        largest = answer_of(key, step_key, 1)
        for k in range(OPTIONS):
            number = share(key, step_key, NUMBER + k)
            vectors[row, k] = 0.5 + 0.5 * number if k == largest else 1.25 * number - 1.0
        paint(key, step_key, SIDE, rows[row, IMAGE:TOKEN])
        place_tokens(key, step_key, rows[row, TOKEN:])
        if mask.shape[1] > 0:
            mask[row] = 1
            for part in range(PARTS):
                barred = answer_of(key, step_key, part) + 1 + pick(key, step_key, BARRED + part, OPTIONS - 1)
                mask[row, part * OPTIONS + barred % OPTIONS] = 0


@compiled
def write_rewards(agents: int, chosen: int, clock: Array, action: Array, reward: Array) -> None:
    """Write the rewards: a third for each right answer, less for distance if it is a number; the first are chosen."""
    for row in range(action.shape[0]):
        own, right = clock[row // agents], 0.0
        key, step_key = own[KEY], own[AGE] * agents + row % agents
        for part in range(PARTS):
            answer = answer_of(key, step_key, part)
            if part >= chosen:
                right += 1.0 - abs(min(max(action[row, part], -1.0), 1.0) - aim(answer))
            elif action[row, part] == answer:
                right += 1.0
        reward[row] = right / PARTS


def make(variant: str, envs: int, *, first: int = 0, seed: int = 0) -> TinyVector:
    """Make the variant `multi`, `continuous`, `hybrid` or `team`."""
    teams = (0, 0) if variant == "team" else (0,)
    spec = EnvSpec(
        name="mixed" if variant == "multi" else f"mixed:{variant}",
        obs=OBS,
        action=SPECS[variant],
        teams=teams,
        exact=True,
    )
    rewards = partial(write_rewards, len(teams), spec.action.discrete_parts)
    return TinyVector(spec, envs, LENGTH, partial(write_observations, len(teams)), rewards, first=first, seed=seed)


def oracle(obs: Array, action: ActionSpec, out: Array) -> None:
    """Write the optimal actions."""
    seen = OBS.split(obs)
    place, feature, value = (seen["tokens"][..., k] for k in range(3))
    highest = np.where(place == ABSENT, -1, value.astype(np.int64)).argmax(axis=1)
    out[:, 0] = brightest_quarter(seen["image"].reshape(len(obs), -1))
    out[:, 1] = seen["vector"].argmax(axis=1)
    out[:, 2] = feature[np.arange(len(obs)), highest]
    if action.kind in ("continuous", "mixed"):
        numbers = out[:, action.discrete_parts :]
        numbers[:] = (numbers * 2 + 1) / OPTIONS - 1


def labels(spec: EnvSpec) -> Labels:
    """The names of the questions, their answers, and the four numbers."""
    answers = tuple(str(answer) for answer in range(OPTIONS))
    options = tuple(answers for _ in spec.action.sizes)
    return Labels(("quarter", "largest", "feature"), options, tuple(f"number {k}" for k in range(OPTIONS)))
