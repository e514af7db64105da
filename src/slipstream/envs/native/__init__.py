"""Native games: written as plain Python functions on named columns, compiled for the CPU and the GPU."""

from slipstream.envs.native.drawing import Canvas
from slipstream.envs.native.game import Game
from slipstream.envs.native.kernels import RUNNING, TERMINATED, TRUNCATED
from slipstream.envs.native.layout import (
    Action,
    Array,
    Observation,
    Record,
    Scratch,
    Settings,
    State,
    Task,
    World,
    array,
    box,
    choice,
    control,
    image,
    records,
    size,
    tokens,
)
from slipstream.envs.native.mathematics import atan2, cos, exp, fabs, floor, hypot, log, sin, sqrt
from slipstream.envs.native.sources import GameError, Random, function

__all__ = [
    "RUNNING",
    "TERMINATED",
    "TRUNCATED",
    "Action",
    "Array",
    "Canvas",
    "Game",
    "GameError",
    "Observation",
    "Random",
    "Record",
    "Scratch",
    "Settings",
    "State",
    "Task",
    "World",
    "array",
    "atan2",
    "box",
    "choice",
    "control",
    "cos",
    "exp",
    "fabs",
    "floor",
    "function",
    "hypot",
    "image",
    "log",
    "records",
    "sin",
    "size",
    "sqrt",
    "tokens",
]
