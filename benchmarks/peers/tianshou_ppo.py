"""Tianshou on equal work: PPO and its on-policy trainer over its in-process vector environment."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from case import Enough, TimedTraining, arguments, begin


def train(training: TimedTraining) -> None:
    """Train for the training's time and report."""
    import numpy as np
    import torch
    from gymnasium.spaces import Discrete
    from tianshou.algorithm import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

    torch.set_num_threads(training.threads)
    np.random.seed(training.seed)
    torch.manual_seed(training.seed)
    case = training.case
    envs = DummyVectorEnv([training.make_env] * case.envs)
    envs.seed(training.seed)
    observations, actions = envs.observation_space[0], envs.action_space[0]

    def body() -> Any:
        activation = {"tanh": torch.nn.Tanh}[case.activation]
        return Net(state_shape=observations.shape, hidden_sizes=case.hidden, activation=activation)

    def categorical(logits: torch.Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Categorical(logits=logits)

    def normal(parameters: tuple[torch.Tensor, torch.Tensor]) -> torch.distributions.Distribution:
        return torch.distributions.Independent(torch.distributions.Normal(*parameters), 1)

    actor: Any
    critic: Any
    distribution: Any
    discrete = isinstance(actions, Discrete)
    if discrete:
        actor = DiscreteActor(preprocess_net=body(), action_shape=int(actions.n), softmax_output=False)
        critic = DiscreteCritic(preprocess_net=body())
        distribution = categorical
    else:
        actor = ContinuousActorProbabilistic(preprocess_net=body(), action_shape=actions.shape, unbounded=True)
        critic = ContinuousCritic(preprocess_net=body())
        distribution = normal
    algorithm: Any = PPO(
        policy=ProbabilisticActorPolicy(
            actor=actor,
            dist_fn=distribution,
            action_space=actions,
            action_scaling=not discrete,
            action_bound_method=None if discrete else "clip",
        ),
        critic=critic,
        optim=AdamOptimizerFactory(lr=case.learning_rate),
        eps_clip=case.clip,
        vf_coef=case.value,
        ent_coef=case.entropy,
        max_grad_norm=case.gradient_norm,
        gae_lambda=case.gae_lambda,
        gamma=case.gamma,
        max_batchsize=case.batch,
    )

    def begun(epoch: int, steps: int) -> None:
        if steps:  # the start of an iteration is the end of the previous one
            training.iteration(steps)

    collector = Collector(algorithm, envs, VectorReplayBuffer(case.batch, case.envs))
    with suppress(Enough):
        algorithm.run_training(
            OnPolicyTrainerParams(
                training_collector=collector,
                max_epochs=1,
                epoch_num_steps=10**9,
                collection_step_num_env_steps=case.batch,
                update_step_num_repetitions=case.epochs,
                batch_size=case.minibatch,
                training_fn=begun,
                verbose=False,
                show_progress=False,
            )
        )
    training.report()


if __name__ == "__main__":
    train(begin("tianshou", "tianshou", arguments(("dummy",), threads=1).parse_args()))
