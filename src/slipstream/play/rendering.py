"""Images of games without a drawing of ours: those of `render_mode="rgb_array"`, or what the first agent sees."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from slipstream.contracts import Array, EnvSpec, ObsField, Rendered
from slipstream.envs.registry import EnvChoice, UserCode
from slipstream.errors import EnvError
from slipstream.play.engine import AgentLoader, ScheduledGame
from slipstream.play.replay_recording import SingleGame, play_again, replayed_choice
from slipstream.runs.replays import Replay

RENDER_PREFIXES = ("gymnasium", "pettingzoo")
"""Prefixes of environments that are made with a `render_mode`; an env given as a function has its own."""
FPS = 30.0
"""Frames per second of an env that declares no `render_fps`."""


class RenderedGame:
    """A game whose images come from its env, one for every state before a step.

    An env without `rgb_array` images is drawn by the newest frame of its image observations, if it has any.
    """

    def __init__(
        self,
        choice: EnvChoice,
        game: ScheduledGame | None = None,
        load: AgentLoader | None = None,
        replay: Replay | None = None,
    ) -> None:
        """Play a scheduled game with agents, or a replay with its actions."""
        if not os.environ.get("DISPLAY") and not os.environ.get("WAYLAND_DISPLAY"):
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame then does not look for a screen
        if replay is not None:
            facts = replay.facts
            game = ScheduledGame(facts.players, facts.seed, facts.task)
        assert game is not None
        self.game = _make_game(choice, game, load)
        self.total = np.zeros(self.game.spec.agents)
        """The return of each agent so far."""
        self._replay = replay
        vector = self.game.vector
        fps = vector.render_fps if isinstance(vector, Rendered) else None
        self.rate = (fps or FPS) / self.game.spec.action_repeat
        """Steps per second at the game's own speed."""

    @classmethod
    def of_replay(cls, replay: Replay, code: UserCode | None = None) -> RenderedGame:
        """A replay that is played again from its seed and actions."""
        return cls(replayed_choice(replay, code), replay=replay)

    def images(self) -> Iterator[Array]:
        """Play the game to its end; uint8 images [height, width, 3]."""
        with contextlib.closing(self.game):
            if self._replay is not None:
                for _ in play_again(self._replay, self.game):
                    yield self._image()
                return
            while not self.game.over:
                yield self._image()
                self.game.act()
                self.game.step()
                self.total += self.game.rows.reward

    def close(self) -> None:
        """Close the env; may be called twice."""
        self.game.close()

    def _image(self) -> Array:
        vector, name = self.game.vector, self.game.spec.name
        found = vector.render() if isinstance(vector, Rendered) else None
        if isinstance(found, np.ndarray) and found.ndim == 3 and found.shape[2] in (3, 4) and found.dtype.kind in "iu":
            return np.ascontiguousarray(found[:, :, :3]).astype(np.uint8, copy=False)
        seen = _image_field(self.game.spec)
        if seen is None and found is not None:
            shape = f" of shape {found.shape} and {found.dtype}" if isinstance(found, np.ndarray) else ""
            raise EnvError(
                f"render() of `{name}` returned a {type(found).__name__}{shape}, which is not an `rgb_array` image.",
                "return an array [height, width, 3] of uint8, from 0 to 255",
            )
        if seen is None:
            raise no_images(name)
        frame = self.game.spec.obs.split(self.game.rows.obs[:1])[seen.name].reshape(-1, *seen.shape[-3:])[-1]
        return np.ascontiguousarray(frame if frame.shape[2] == 3 else frame[:, :, -1:].repeat(3, axis=2))


def no_images(env: str) -> EnvError:
    """The error for an environment that can be drawn in no way."""
    return EnvError(
        f"`{env}` cannot be drawn: it has no drawing of its own, no `rgb_array` images and no images as observations.",
        'an environment of your own can return an image from render() with render_mode="rgb_array"',
    )


def _make_game(choice: EnvChoice, game: ScheduledGame, load: AgentLoader | None) -> SingleGame:
    """A game in an env that is made with `render_mode="rgb_array"` if it takes one."""
    if choice.factory is not None or choice.name.partition(":")[0] not in RENDER_PREFIXES:
        return SingleGame(choice, game, load)
    options = {**choice.env.options, "render_mode": "rgb_array"}
    try:
        return SingleGame(
            replace(choice, env=choice.env.model_copy(update={"options": options}), native=False), game, load
        )
    except EnvError as error:
        if "render_mode" not in error.message:
            raise
    made = SingleGame(choice, game, load)
    if _image_field(made.spec) is None:
        made.close()
        raise no_images(choice.name)
    return made


def _image_field(spec: EnvSpec) -> ObsField | None:
    return next((field for field in spec.obs.fields if field.kind == "image"), None)
