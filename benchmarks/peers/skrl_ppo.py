"""skrl on equal work: PPO over Gymnasium's vector environments, serial or one process each."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from case import Enough, TimedTraining, arguments, begin


def train(training: TimedTraining) -> None:
    """Train for the training's time and report."""
    import gymnasium
    import torch
    from skrl.agents.torch.ppo import PPO
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.trainers.torch import SequentialTrainer, SequentialTrainerCfg
    from skrl.utils import set_seed
    from skrl.utils.model_instantiators.torch import categorical_model, deterministic_model, gaussian_model

    torch.set_num_threads(training.threads)
    set_seed(training.seed)
    case = training.case
    vectors = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}
    vector = vectors[training.variant](
        [training.make_env] * case.envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    env = wrap_env(vector)
    network = [{"name": "net", "input": "OBSERVATIONS", "layers": list(case.hidden), "activations": case.activation}]
    discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
    shape: dict[str, Any] = {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "device": env.device,
        "network": network,
    }
    models = {
        "policy": (categorical_model if discrete else gaussian_model)(**shape, output="ACTIONS"),
        "value": deterministic_model(**shape, output="ONE"),
    }

    class Watched(PPO):
        """PPO that reports each update to the clock."""

        iterations = 0

        def update(self, *, timestep: int, timesteps: int) -> None:
            super().update(timestep=timestep, timesteps=timesteps)
            self.iterations += 1
            training.iteration(self.iterations * case.batch)

    agent = Watched(
        models=models,
        memory=RandomMemory(memory_size=case.rollout, num_envs=case.envs, device=env.device),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
        cfg={
            "rollouts": case.rollout,
            "learning_epochs": case.epochs,
            "mini_batches": case.minibatches,
            "discount_factor": case.gamma,
            "gae_lambda": case.gae_lambda,
            "learning_rate": case.learning_rate,
            "grad_norm_clip": case.gradient_norm,
            "ratio_clip": case.clip,
            "value_clip": 0.0,
            "entropy_loss_scale": case.entropy,
            "value_loss_scale": case.value,
            "experiment": {"write_interval": 0, "checkpoint_interval": 0},
        },
    )
    settings = SequentialTrainerCfg(timesteps=10**9, headless=True, disable_progressbar=True)
    with suppress(Enough):
        SequentialTrainer(cfg=settings, env=env, agents=agent).train()
    training.report()


if __name__ == "__main__":
    train(begin("skrl", "skrl", arguments(("sync", "async"), threads=1).parse_args()))
