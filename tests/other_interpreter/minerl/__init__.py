"""A stand-in for minerl 0.4.4: registers games with its spaces, and some that fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import gym
import numpy as np
from gym import spaces

BUTTONS = ("attack", "back", "forward", "jump", "left", "right", "sneak", "sprint")
HUMAN = ("ESC", "drop", "inventory", "pickItem", "swapHands", "use", *(f"hotbar.{n}" for n in range(1, 10)))
WORDS = ("air", "iron_axe", "none")
FAULTS = ("raise", "die", "leave", "kill", "hang", "java", "exit", "make", "stuck")


class Enum(spaces.Discrete):
    """Words, sorted as minerl has them."""

    def __init__(self, *values: str) -> None:
        super().__init__(len(values))
        self.values = np.array(sorted(values))


class Treechop:
    """Frames that are brighter with every attack; an attack is rewarded. `fault` happens at step 10.

    `human` is a game of minerl 1.0, which has all buttons and wide frames; it tells what was pressed.
    """

    def __init__(self, fault: str = "", inventory: bool = False, human: bool = False) -> None:
        self._fault, self._inventory, self._human = fault, inventory, human
        self._shape = (36, 64, 3) if human else (64, 64, 3)
        parts = {"pov": spaces.Box(0, 255, self._shape, np.uint8)}
        buttons: dict = {name: spaces.Discrete(2) for name in (*BUTTONS, *(HUMAN if human else ()))}
        buttons["camera"] = spaces.Box(-180, 180, (2,), np.float32)
        if inventory:
            hand = spaces.Dict({"type": Enum(*WORDS), "damage": spaces.Box(-1, 1562, (), np.int64)})
            parts["equipped_items"] = spaces.Dict({"mainhand": hand})
            parts["inventory"] = spaces.Dict({"log": spaces.Box(0, 2304, (), np.int64)})
            buttons["craft"] = Enum("none", "planks", "torch")
        self.observation_space, self.action_space = spaces.Dict(parts), spaces.Dict(buttons)
        self._random = np.random.RandomState(0)
        self._steps = self._logs = 0
        print("[Launcher] a line of a log that looks like a reply", flush=True)
        if fault == "stuck":
            time.sleep(600)
        if fault == "make":
            raise RuntimeError("no Java here")
        if fault == "java":
            script = "import time; time.sleep(600)"
            for own_session in (False, True):
                subprocess.Popen([sys.executable, "-c", script], start_new_session=own_session)

    def seed(self, seed: int) -> None:
        """Set the seed."""
        self._random = np.random.RandomState(seed % 2**32)

    def reset(self) -> dict:
        """Start a game."""
        self._steps = self._logs = 0
        return self._see()

    def step(self, action: dict) -> tuple:
        """Attack or not."""
        assert type(action["attack"]) is int and action["camera"].dtype == np.float32, action
        self._steps += 1
        print("[Client thread/INFO]: step", self._steps)
        if self._steps == 10:
            self._fail()
        self._logs += action["attack"]
        info = {"note": "chopped", "frame": object()} if action["attack"] else {}
        if self._human:
            pressed = sorted(name for name, value in action.items() if name != "camera" and value)
            info = {"pressed": pressed, "camera": action["camera"]}
        return self._see(action), float(action["attack"]), self._logs >= 64, info

    def close(self) -> None:
        """Say so."""
        print("[Launcher] closed", flush=True)

    def _fail(self) -> None:
        if self._fault == "raise":
            raise ValueError("the server lost a chunk")
        if self._fault == "die":
            os._exit(7)
        if self._fault == "leave":
            os._exit(200)
        if self._fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault in ("hang", "java"):
            time.sleep(600)
        if self._fault == "exit":
            sys.exit("bye")

    def _see(self, action: Any = None) -> dict:
        pov = self._random.randint(0, 64, self._shape).astype(np.uint8) + np.uint8(min(self._logs, 128))
        seen: dict = {"pov": pov}
        if self._inventory:
            word = "none" if action is None or action["craft"] == "none" else "iron_axe"
            seen["equipped_items"] = {"mainhand": {"type": word, "damage": np.array(3)}}
            seen["inventory"] = {"log": np.int64(self._logs)}
        return seen


for name, options in {
    "MineRLTreechop-v0": {},
    "MineRLObtainDiamond-v0": {"inventory": True},
    "MineRLBasaltFindCave-v0": {"human": True},
    **{f"{fault.title()}-v0": {"fault": fault} for fault in FAULTS},
}.items():
    gym.register(id=name, entry_point=Treechop, max_episode_steps=20, **options)
