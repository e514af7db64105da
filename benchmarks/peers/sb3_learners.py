"""Steps per second of Stable-Baselines3's SAC and sb3-contrib's RecurrentPPO on equal work.

`--vec separate` gives RecurrentPPO separate LSTMs for policy and value, its default, instead of a shared one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from case import Enough, Replay, TimedTraining, arguments, begin
from learning_tasks import SETTLED, SPEED_TASKS
from sb3 import train
from sb3_learning import model_of


def replay(training: TimedTraining, model: Any) -> None:
    """Train SAC for the training's time, counted from the end of the warm-up, and report."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Watch(BaseCallback):
        """Reports every step to the clock."""

        def _on_step(self) -> bool:
            if self.num_timesteps >= SETTLED:
                training.iteration(self.num_timesteps)
            return True

    with suppress(Enough):
        model.learn(10**9, callback=Watch(), progress_bar=False)
    training.returns.extend(episode["r"] for episode in model.ep_info_buffer)
    training.report()
    model.env.close()


def main() -> None:
    """Parse the options, train, print."""
    training = begin("sb3", "sb3-contrib", arguments(("plain", "separate"), threads=1, cases=SPEED_TASKS).parse_args())
    import torch
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(training.threads)
    side = "sb3-separate" if training.variant == "separate" else "sb3-recurrent"
    model = model_of(side, training.case, make_vec_env(training.env, training.case.envs, training.seed), training.seed)
    (replay if isinstance(training.case, Replay) else train)(training, model)


if __name__ == "__main__":
    main()
