"""RLlib on equal work: PPO of its new API stack with the environments and the learner in the driver process."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from case import Enough, TimedTraining, arguments, begin, make_named


def train(training: TimedTraining) -> None:
    """Train for the training's time and report."""
    import gymnasium
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    torch.set_num_threads(training.threads)
    case = training.case

    def make(context: Any) -> Any:
        return make_named(training.env)

    continuous = isinstance(make_named(training.env).action_space, gymnasium.spaces.Box)
    register_env("training", make)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    algorithm = (
        PPOConfig()
        .environment("training")
        .framework("torch")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=case.envs, rollout_fragment_length=case.rollout)
        .learners(num_learners=0, num_gpus_per_learner=0)
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(case.hidden),
                fcnet_activation=case.activation,
                vf_share_layers=False,
                free_log_std=continuous,
            )
        )
        .training(
            train_batch_size_per_learner=case.batch,
            minibatch_size=case.minibatch,
            num_epochs=case.epochs,
            lr=case.learning_rate,
            gamma=case.gamma,
            lambda_=case.gae_lambda,
            clip_param=case.clip,
            vf_clip_param=1e6,
            vf_loss_coeff=case.value,
            entropy_coeff=case.entropy,
            grad_clip=case.gradient_norm,
            use_kl_loss=False,
        )
        .reporting(metrics_num_episodes_for_smoothing=100, min_time_s_per_iteration=0)
        .debugging(seed=training.seed, log_level="ERROR")
        .build_algo()
    )
    result: dict[str, Any] = {}
    with suppress(Enough):
        while True:
            result = algorithm.train()
            training.iteration(int(result["num_env_steps_sampled_lifetime"]))
    mean_return = result["env_runners"].get("episode_return_mean", math.nan)
    training.report(mean_return=None if math.isnan(mean_return) else mean_return)
    algorithm.stop()
    ray.shutdown()


if __name__ == "__main__":
    train(begin("rllib", "ray", arguments(("local",), threads=1).parse_args()))
