"""Stable-Baselines3 on equal work, and its published CartPole settings until a return is reached."""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from case import CASES, Case, Enough, TimedTraining, arguments, begin, make_named
from learning_tasks import LESSONS

PUBLISHED = LESSONS["cartpole"].work
PUBLISHED_STEPS = LESSONS["cartpole"].steps  # the length of the published schedules; the learning rate is 0 after it
LIMIT_S = 120.0


def ppo_options(case: Case, activation: Any, seed: int) -> dict[str, Any]:
    """A case as keyword arguments of PPO and its variants."""

    def falling(value: float) -> Any:
        return (lambda remaining: remaining * value) if case.falling else value

    return {
        "n_steps": case.rollout,
        "batch_size": case.minibatch,
        "n_epochs": case.epochs,
        "learning_rate": falling(case.learning_rate),
        "clip_range": falling(case.clip),
        "gamma": case.gamma,
        "gae_lambda": case.gae_lambda,
        "ent_coef": case.entropy,
        "vf_coef": case.value,
        "max_grad_norm": case.gradient_norm,
        "policy_kwargs": {
            "net_arch": {"pi": list(case.hidden), "vf": list(case.hidden)},
            "activation_fn": activation,
        },
        "seed": seed,
        "device": "cpu",
        "verbose": 0,
    }


def build(training: TimedTraining, algorithm: Any, activation: Any) -> Any:
    """The PPO model of this training's case."""
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    torch.set_num_threads(training.threads)
    # fork: forkserver imports torch once per environment; the steady state is the same
    vec, options = (SubprocVecEnv, {"start_method": "fork"}) if training.variant == "subproc" else (DummyVecEnv, {})
    shared = {"n_envs": training.case.envs, "seed": training.seed, "vec_env_cls": vec, "vec_env_kwargs": options}
    if not training.case.frames:
        envs = make_vec_env(training.env, **shared)
        return algorithm("MlpPolicy", envs, **ppo_options(training.case, activation, training.seed))
    from stable_baselines3.common.atari_wrappers import AtariWrapper
    from stable_baselines3.common.vec_env import VecFrameStack

    envs = VecFrameStack(
        make_vec_env(make_named, env_kwargs={"name": training.env}, wrapper_class=AtariWrapper, **shared), 4
    )
    wanted = ppo_options(training.case, activation, training.seed)
    del wanted["policy_kwargs"]  # its CnnPolicy is the Nature CNN without further layers
    return algorithm("CnnPolicy", envs, **wanted)


def train(training: TimedTraining, model: Any, until: float | None = None) -> None:
    """Train for the training's time, or with the published settings until the return is reached, and report."""
    from stable_baselines3.common.callbacks import BaseCallback

    started = time.perf_counter()
    reached: dict[str, Any] = {"reached": False}

    class Watch(BaseCallback):
        """Reports the end of each iteration: the start of the next rollout, or the end of training."""

        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                self.look()

        def _on_training_end(self) -> None:
            self.look()

        def look(self) -> None:
            training.returns.clear()
            training.returns.extend(episode["r"] for episode in model.ep_info_buffer)
            seconds = time.perf_counter() - started
            full = len(training.returns) == training.returns.maxlen
            if until is not None and full and sum(training.returns) / len(training.returns) >= until:
                reached.update(reached=True, until_steps=self.num_timesteps, until_seconds=round(seconds, 3))
                training.seconds = 0.0
            training.iteration(self.num_timesteps)

    with suppress(Enough):
        model.learn(PUBLISHED_STEPS if until is not None else 10**9, callback=Watch(), progress_bar=False)
    extra = {"until_return": until, "train_seconds": round(time.perf_counter() - started, 3), **reached}
    training.report(**(extra if until is not None else {}))
    model.env.close()


def main() -> None:
    """Parse the options, train, print."""
    parser = arguments(("dummy", "subproc"), threads=dict.fromkeys(CASES, 1) | {"pong": 2})
    parser.add_argument("--until-return", type=float, help="published CartPole settings until this mean return")
    options: argparse.Namespace = parser.parse_args()
    training = begin("sb3", "stable-baselines3", options)
    if options.until_return is not None:
        training = replace(training, case=PUBLISHED, case_name="cartpole-published", seconds=LIMIT_S)
    import torch
    from stable_baselines3 import PPO

    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[training.case.activation]
    train(training, build(training, PPO, activation), options.until_return)


if __name__ == "__main__":
    main()
