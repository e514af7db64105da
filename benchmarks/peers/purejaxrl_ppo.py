"""PureJaxRL's PPO on CartPole as a contestant: compiled once, then it trains for a slice whenever it is asked to.

    python benchmarks/peers/purejaxrl_ppo.py FOLDER '{"envs": 16384, "steps": 64, "minibatches": 16, "width": 128}'

FOLDER holds PureJaxRL's ppo.py and wrappers.py, which run as they are, except for the width of the layers. A line with
a number of seconds on standard input is answered by `[steps, seconds]` of a slice that takes at least as long. Packages
that CartPole does not need (brax, navix, and those for plots and checkpoints) are replaced by empty modules, and
distrax by its categorical distribution, so that JAX, flax, optax, chex and gymnax suffice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

MEMORY = "0.2"
"""The share of the GPU's memory that JAX takes at its start, so that all contestants fit beside each other."""
UPDATES = 32
"""Updates of one call, which begins with new weights and games."""
UNUSED = (
    "matplotlib",
    "matplotlib.pyplot",
    "seaborn",
    "brax",
    "brax.envs",
    "brax.envs.wrappers",
    "brax.envs.wrappers.training",
    "navix",
    "orbax",
    "orbax.checkpoint",
    "tensorstore",
    "treescope",
)
CONFIG = {
    "LR": 2.5e-4,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "tanh",
    "ENV_NAME": "CartPole-v1",
    "ANNEAL_LR": False,
    "UPDATE_EPOCHS": 1,
}


def add_stand_ins() -> None:
    """Put modules in the place of packages that are not needed."""
    import importlib.util

    import jax
    import jax.numpy as jnp

    for name in UNUSED:
        if name.partition(".")[0] in sys.modules or importlib.util.find_spec(name.partition(".")[0]) is None:
            sys.modules.setdefault(name, MagicMock())

    class Categorical:
        """distrax.Categorical with the methods that PPO calls."""

        def __init__(self, logits: Any) -> None:
            self.logits = jax.nn.log_softmax(logits)

        def sample(self, seed: Any) -> Any:
            return jax.random.categorical(seed, self.logits)

        def log_prob(self, action: Any) -> Any:
            return jnp.sum(self.logits * jax.nn.one_hot(action, self.logits.shape[-1]), -1)

        def entropy(self) -> Any:
            return -jnp.sum(jnp.exp(self.logits) * self.logits, -1)

    if importlib.util.find_spec("distrax") is None:
        distrax: Any = ModuleType("distrax")
        distrax.Categorical = Categorical
        sys.modules["distrax"] = distrax


def main() -> None:
    """Compile, and train on request."""
    folder, work = Path(sys.argv[1]), json.loads(sys.argv[2])
    answer, sys.stdout = sys.stdout, sys.stderr
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = MEMORY
    import jax

    jax.config.update("jax_default_matmul_precision", work["precision"])
    add_stand_ins()
    sys.path.insert(0, str(folder))
    text = (folder / "ppo.py").read_text(encoding="utf-8")
    if text.count("            64, kernel_init") != 4:
        raise SystemExit("This ppo.py has other layers than the one that this benchmark was written for.")
    ppo: Any = ModuleType("ppo")
    sys.modules["ppo"] = ppo
    wider = text.replace("            64, kernel_init", f"            {work['width']}, kernel_init")
    exec(compile(wider, "ppo.py", "exec"), vars(ppo))
    steps = work["envs"] * work["steps"] * UPDATES
    sizes = {"NUM_ENVS": work["envs"], "NUM_STEPS": work["steps"], "NUM_MINIBATCHES": work["minibatches"]}
    train = jax.jit(ppo.make_train(CONFIG | sizes | {"TOTAL_TIMESTEPS": steps}))
    key = jax.random.PRNGKey(0)
    began = time.perf_counter()
    compiled = train.lower(key).compile()
    jax.block_until_ready(compiled(key))
    print(f"compiled in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    print(json.dumps([0, 0.0]), file=answer, flush=True)
    for line in sys.stdin:
        began, done = time.perf_counter(), 0
        while not done or time.perf_counter() - began < float(line):
            key, own = jax.random.split(key)
            result = jax.block_until_ready(compiled(own))
            done += steps
            del result
        print(json.dumps([done, time.perf_counter() - began]), file=answer, flush=True)


if __name__ == "__main__":
    main()
