"""Live games with MineRL's dict API, encoded exactly like imported MineRL recordings.

Frames go through the same frame adapter, scalars have the same field names, and actions use the same action map, so a
policy cloned from recordings can play the live game.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from slipstream.contracts import Array, nest
from slipstream.envs.adapters.action_spaces import action_space
from slipstream.envs.adapters.bridge import DEADLINE_S, BridgeEnv
from slipstream.envs.adapters.gymnasium import as_gymnasium_env, refuse_module
from slipstream.envs.options import check_options
from slipstream.errors import EnvError
from slipstream.minecraft.action_maps import BUTTONS, FULL, ActionMap, CameraBins, action_map
from slipstream.minecraft.env_settings import split_size, split_words
from slipstream.minecraft.frames import VPT_FRAMES, FrameAdapter, follow

OPTIONS = (
    *("actions", "look", "margin", "camera", "size", "grey", "stack"),
    *("resize", "buttons", "choices", "categories"),
)
"""The keys of `env.options`.

The first have the meaning of the flags of `slipstream demos import minerl`. The others are set for a clone of such
demos: how frames were resized, the buttons and words of the full map, and the words of string observations.
"""


class MineRLEnv(gymnasium.Env[Any, Any]):
    """A game with MineRL's API as a Gymnasium environment.

    `env` may have the old Gym API (`reset` returns an observation, `step` four values) or the new one. `categories`
    lists the values of each string observation (`equipped_items/mainhand/type`) in the order of the demos' one-hot
    columns; the default is the order of the env's space. `buttons` and `choices` (the words of each string action) are
    those of the demos' full map; the default is all that the env has. With `actions` = vpt the env has the spaces of
    VPT's published agents, which see a frame of 128 x 128 pixels and nothing else.
    """

    def __init__(
        self,
        env: Any,
        *,
        actions: str = "14",
        look: float = 15.0,
        margin: float = 5.0,
        bins: CameraBins | None = FULL.bins,
        adapter: FrameAdapter | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        buttons: Sequence[str] | None = None,
        choices: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        observed, taken = _leaves(env.observation_space), _leaves(env.action_space)
        if "pov" not in observed or "camera" not in taken:
            raise EnvError(
                f"{type(env).__name__} does not have MineRL's API: its observations are "
                f"{', '.join(observed) or 'unnamed'} and its actions are {', '.join(taken) or 'unnamed'}.",
                "give an env whose observations have `pov` and whose actions have `camera`",
            )
        self.inner = as_gymnasium_env(_WithoutSpaces(env))
        self._categories = {name: tuple(space.values) for name, space in observed.items() if hasattr(space, "values")}
        self._categories |= {name: tuple(words) for name, words in (categories or {}).items()}
        self._only_frames = actions == "vpt"
        self._frames = adapter or (VPT_FRAMES if self._only_frames else FrameAdapter())
        self._noop = {name: _null_action(space) for name, space in taken.items()}
        words = {name: tuple(space.values) for name, space in taken.items() if hasattr(space, "values")}
        others = [name for name in taken if name not in BUTTONS and name not in words and name != "camera"]
        switches = (*BUTTONS, *sorted(name for name in others if getattr(taken[name], "n", 0) == 2))
        if choices is not None:
            _check_words(choices, words)
        self.map: ActionMap = action_map(
            actions,
            look=look,
            margin=margin,
            buttons=switches if buttons is None else buttons,
            choices=words if choices is None else choices,
            bins=bins,
        )
        scalars = {name: space for name, space in observed.items() if name != "pov" and not self._only_frames}
        self._scalars = {name: self._size(name, space) for name, space in scalars.items()}
        height, width, channels = self._frames.small(observed["pov"].shape)
        fields: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in self._scalars.items()
        }
        fields["pov"] = spaces.Box(0, 255, (height, width, channels * self._frames.stack), np.uint8)
        self.observation_space = fields["pov"] if self._only_frames else spaces.Dict(fields)
        self.action_space = action_space(self.map.spec)
        self._stacked: Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a game."""
        obs, info = self.inner.reset(seed=seed, options=options)
        self._stacked = None
        return self._encode(obs), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step with one action of the action map."""
        decoded = self.map.decode(np.asarray(action).reshape(1, -1))
        given = self._noop | {name: value[0] for name, value in decoded.items() if name in self._noop}
        obs, reward, terminated, truncated, info = self.inner.step(nest(given))
        return self._encode(obs), float(reward), bool(terminated), bool(truncated), info

    def close(self) -> None:
        """Close the game."""
        self.inner.close()

    def _size(self, name: str, space: Any) -> int:
        if name in self._categories:
            return len(self._categories[name])
        return int(np.prod(getattr(space, "shape", None) or ()))

    def _encode(self, obs: Any) -> dict[str, Array] | Array:
        """Encode an observation like the importer of recordings."""
        values = _leaves(obs)
        frame = self._frames.shrink(np.asarray(values["pov"], np.uint8))
        if self._stacked is None:
            self._stacked = np.concatenate([frame] * self._frames.stack, axis=-1)
        else:
            self._stacked = follow(self._stacked, frame)
        if self._only_frames:
            return self._stacked
        found: dict[str, Array] = {name: self._encode_scalar(name, values[name]) for name in self._scalars}
        return found | {"pov": self._stacked}

    def _encode_scalar(self, name: str, value: Any) -> Array:
        names = self._categories.get(name)
        if names is None:
            return np.asarray(value, np.float32).reshape(-1)
        text = names[int(value)] if isinstance(value, int | np.integer) and 0 <= value < len(names) else str(value)
        if text not in names:
            raise EnvError(f"`{name}` is `{text}`, which is not one of: {', '.join(names)}.", "list all its categories")
        return np.array([one == text for one in names], np.float32)


class _WithoutSpaces:
    """A game without its original spaces, which Gymnasium does not support; dicts are passed through."""

    observation_space = action_space = spaces.Dict({})

    def __init__(self, env: Any) -> None:
        self._env = env
        self.reset, self.step = env.reset, env.step
        for name in ("seed", "close"):
            if hasattr(env, name):
                setattr(self, name, getattr(env, name))


def _leaves(tree: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of nested dicts (or Dict spaces) by their joined names."""
    parts = getattr(tree, "spaces", tree)
    found: dict[str, Any] = {}
    for key, part in parts.items() if isinstance(parts, Mapping) else ():
        inner = getattr(part, "spaces", part)
        found |= _leaves(part, f"{prefix}{key}/") if isinstance(inner, Mapping) else {f"{prefix}{key}": part}
    return found


def _null_action(space: Any) -> Any:
    """The null value of a part of an action."""
    if hasattr(space, "values"):
        return "none" if "none" in space.values else space.values[0]
    shape = getattr(space, "shape", None) or ()
    return np.zeros(shape, space.dtype) if shape else 0


def _check_words(choices: Mapping[str, Sequence[str]], known: Mapping[str, Sequence[str]]) -> None:
    """Raise for a word of a string action that the env does not have."""
    for name, words in choices.items():
        missing = [word for word in words if word not in known.get(name, ())]
        if missing:
            raise EnvError(
                f"The env has no action `{name}` = `{missing[0]}`; it has {', '.join(known.get(name, ())) or 'none'}.",
                "play the game in which the demos were recorded",
            )


def make(
    name: str,
    options: Mapping[str, Any],
    python: str = "",
    modules: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
) -> MineRLEnv:
    """Make a game of the minerl package, if it is installed here or in the interpreter `python`."""
    check_options("minerl", options, OPTIONS)
    refuse_module("minerl", name)
    given = dict(options)
    given["actions"] = str(given.get("actions", "14"))
    usual = VPT_FRAMES if given["actions"] == "vpt" else FrameAdapter()
    adapter = FrameAdapter(
        split_size(given.pop("size", None)) or usual.size,
        bool(given.pop("grey", False)),
        given.pop("stack", 1),
        how=given.pop("resize", usual.how),
    )
    if "camera" in given:
        given["bins"] = CameraBins(*map(float, given.pop("camera").split(",")))
    if "buttons" in given:
        given["buttons"] = given["buttons"].split(",")
    given |= {key: split_words(given[key]) for key in ("choices", "categories") if key in given}
    env = _make_there(python, name, modules, deadline_s) if python else _make_here(name)
    try:
        return MineRLEnv(env, adapter=adapter, **given)
    except BaseException:
        env.close()
        raise


def _make_there(python: str, name: str, modules: Sequence[str], deadline_s: float) -> Any:
    own: dict[str, Any] = {"packages": ("gym", "gymnasium"), "imports": ("minerl",)}
    return BridgeEnv(python, name, {}, modules=modules, deadline_s=deadline_s, **own)


def _make_here(name: str) -> Any:
    try:
        gym, _ = import_module("gym"), import_module("minerl")  # importing minerl registers its games
    except ImportError as error:
        raise EnvError(
            f"`minerl:{name}` needs the real game from the package minerl: {error}. pip cannot install minerl on a "
            "modern Python: its newest release requires an old gym whose metadata pip rejects, and it downloads files "
            "to build the game.",
            "if another interpreter has minerl, add --python PATH; or use `treechop`, which has the spaces of "
            "MineRLTreechop; or import recordings with `slipstream demos import minerl DIR`",
        ) from error
    return gym.make(name)
