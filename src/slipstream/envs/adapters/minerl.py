"""Live games with MineRL's API, dicts in and dicts out, as an agent that learned from MineRL's recordings sees them.

The frames go through the same frame adapter as those of imported recordings, numbers stand beside them by the same
names, and a policy's action becomes a dict by the same action map: what was cloned from recordings can play.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from slipstream.contracts import Array
from slipstream.envs.adapters.action_spaces import action_space_of
from slipstream.envs.adapters.gymnasium import make_env
from slipstream.envs.options import check_options
from slipstream.errors import EnvError
from slipstream.minecraft.action_maps import BUTTONS, FULL, ActionMap, CameraBins, action_map
from slipstream.minecraft.frames import FrameAdapter, follow

OPTIONS = ("actions", "look", "margin", "size", "grey", "stack")
"""What `env.options` may say, each as the flag of that name says it to `slipstream demos import minerl`."""


class Live(gymnasium.Env[Any, Any]):
    """A game with MineRL's API as a Gymnasium environment that policies can play.

    `env` may be of the old kind (`reset` gives an observation, `step` four things) or of the new. `words` lists those
    of each observation that is told in words (`equipped_items/mainhand/type`), in the order of the demos' one-hots;
    without it, in the order in which the env's space has them.
    """

    def __init__(
        self, env: Any, *, actions: str = "14", look: float = 15.0, margin: float = 5.0,
        bins: CameraBins | None = FULL.bins, adapter: FrameAdapter | None = None,
        words: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:  # fmt: skip
        seen, taken = _leaves(env.observation_space), _leaves(env.action_space)
        if "pov" not in seen or "camera" not in taken:
            raise EnvError(
                f"{type(env).__name__} has not MineRL's API: it shows {', '.join(seen) or 'nothing by name'} and takes "
                f"{', '.join(taken) or 'nothing by name'}.",
                "give an env whose observations have `pov` and whose actions have `camera`",
            )
        self.inner = make_env(_Plain(env))
        self._words = {name: tuple(space.values) for name, space in seen.items() if hasattr(space, "values")}
        self._words |= dict(words or {})
        self._frames = adapter or FrameAdapter()
        self._noop = {name: _nothing(space) for name, space in taken.items()}
        choices = {name: tuple(space.values) for name, space in taken.items() if hasattr(space, "values")}
        others = [name for name in taken if name not in BUTTONS and name not in choices and name != "camera"]
        buttons = (*BUTTONS, *sorted(name for name in others if getattr(taken[name], "n", 0) == 2))
        self.map: ActionMap = action_map(actions, look=look, margin=margin, buttons=buttons, choices=choices, bins=bins)
        self._scalars = {name: self._size(name, space) for name, space in seen.items() if name != "pov"}
        height, width, channels = self._frames.small(seen["pov"].shape)
        fields: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in self._scalars.items()
        }
        fields["pov"] = spaces.Box(0, 255, (height, width, channels * self._frames.stack), np.uint8)
        self.observation_space = spaces.Dict(fields)
        self.action_space = action_space_of(self.map.spec)
        self._stacked: Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game."""
        obs, info = self.inner.reset(seed=seed, options=options)
        self._stacked = None
        return self._see(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Play a step by one action of the map."""
        chosen = self.map.decode(np.asarray(action).reshape(1, -1))
        given = self._noop | {name: value[0] for name, value in chosen.items() if name in self._noop}
        obs, reward, terminated, truncated, info = self.inner.step(_nested(given))
        return self._see(obs), float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Close the game."""
        self.inner.close()

    def _size(self, name: str, space: Any) -> int:
        if name in self._words:
            return len(self._words[name])
        return int(np.prod(getattr(space, "shape", None) or ()))

    def _see(self, obs: Any) -> dict[str, Array]:
        """An observation as the importer would have written it."""
        told = _leaves(obs)
        frame = self._frames.shrink(np.asarray(told["pov"], np.uint8))
        if self._stacked is None:
            self._stacked = np.concatenate([frame] * self._frames.stack, axis=-1)
        else:
            self._stacked = follow(self._stacked, frame)
        found: dict[str, Array] = {name: self._number(name, told[name]) for name in self._scalars}
        return found | {"pov": self._stacked}

    def _number(self, name: str, value: Any) -> Array:
        words = self._words.get(name)
        if words is None:
            return np.asarray(value, np.float32).reshape(-1)
        told = words[int(value)] if isinstance(value, int | np.integer) and 0 <= value < len(words) else str(value)
        if told not in words:
            raise EnvError(f"`{name}` is `{told}`, which is none of: {', '.join(words)}.", "say all of its words")
        return np.array([word == told for word in words], np.float32)


class _Plain:
    """A game whose spaces nobody asks for: dicts go in and out as they are."""

    observation_space = action_space = spaces.Dict({})

    def __init__(self, env: Any) -> None:
        self._env = env
        self.reset, self.step = env.reset, env.step
        for name in ("seed", "close"):
            if hasattr(env, name):
                setattr(self, name, getattr(env, name))


def _leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The parts of nested dicts (or spaces of them) by their joined names."""
    parts = getattr(tree, "spaces", tree)
    found: dict[str, Any] = {}
    for key, part in parts.items() if isinstance(parts, Mapping) else ():
        inner = getattr(part, "spaces", part)
        found |= _leaves(part, f"{prefix}{key}/") if isinstance(inner, Mapping) else {f"{prefix}{key}": part}
    return found


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_leaves`, for dicts."""
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *groups, key = name.split("/")
        at = tree
        for group in groups:
            at = at.setdefault(group, {})
        at[key] = value
    return tree


def _nothing(space: Any) -> Any:
    """What is done in a part of an action if nothing is."""
    if hasattr(space, "values"):
        return "none" if "none" in space.values else space.values[0]
    shape = getattr(space, "shape", None) or ()
    return np.zeros(shape, space.dtype) if shape else 0


def make(name: str, options: Mapping[str, Any]) -> Live:
    """Make a game of the minerl package, where that is installed."""
    check_options("minerl", options, OPTIONS)
    try:
        gym, _ = import_module("gym"), import_module("minerl")  # the latter registers its games
    except ImportError as error:
        raise EnvError(
            f"`minerl:{name}` needs the real game, through the package minerl: {error}. It cannot be installed by pip "
            "on a modern Python: its newest release there asks for an old gym whose metadata pip refuses, and builds "
            "the game with files that it downloads.",
            "play `treechop`, which has MineRLTreechop's spaces; import recordings with `slipstream demos import "
            "minerl DIR`; or install minerl from its repository, with Java, where it can still be built",
        ) from error
    given = dict(options)
    size = given.pop("size", None)
    adapter = FrameAdapter(
        (int(size), int(size)) if size else None, bool(given.pop("grey", False)), given.pop("stack", 1)
    )
    return Live(gym.make(name), adapter=adapter, **given | {"actions": str(given.get("actions", "14"))})
