"""Native games: written as plain Python functions on named columns, compiled for the CPU and the GPU."""

from slipstream.envs.native.drawing import Canvas
from slipstream.envs.native.game import Game
from slipstream.envs.native.kernels import RUNNING, TERMINATED, TRUNCATED
from slipstream.envs.native.layout import (
    Action,
    Array,
    Observation,
    Record,
    State,
    Task,
    array,
    box,
    choice,
    image,
    records,
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
    "State",
    "Task",
    "array",
    "atan2",
    "box",
    "choice",
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
    "sqrt",
    "tokens",
]
