"""SBX on equal work: Stable-Baselines3's loop and environments around an update compiled by JAX."""

from __future__ import annotations

import os

from case import arguments, begin
from sb3 import build, train


def main() -> None:
    """Parse the options, train, print."""
    training = begin("sbx", "sbx-rl", arguments(("dummy",), threads=1).parse_args())
    if training.threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import flax.linen
    from sbx import PPO

    train(training, build(training, PPO, {"tanh": flax.linen.tanh}[training.case.activation]))


if __name__ == "__main__":
    main()
