"""TorchRL on equal work: its collector, GAE, replay buffer and clipped loss in the loop of its documentation."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from case import Enough, TimedTraining, arguments, begin


def train(training: TimedTraining) -> None:
    """Train for the training's time and report."""
    import torch
    from gymnasium.spaces import Discrete
    from tensordict.nn import AddStateIndependentNormalScale, TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, ReplayBuffer, SamplerWithoutReplacement
    from torchrl.envs import DoubleToFloat, GymWrapper, SerialEnv, TransformedEnv
    from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
    from torchrl.objectives import ClipPPOLoss
    from torchrl.objectives.value import GAE

    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    case = training.case
    discrete = isinstance(training.make_env().action_space, Discrete)

    def make() -> Any:
        return GymWrapper(training.make_env(), categorical_action_encoding=True)

    envs = TransformedEnv(SerialEnv(case.envs, make), DoubleToFloat())
    envs.set_seed(training.seed)
    inputs = envs.observation_spec["observation"].shape[-1]
    outputs = envs.action_spec_unbatched.space.n if discrete else envs.action_spec.shape[-1]

    def network(width: int) -> MLP:
        activation = {"tanh": torch.nn.Tanh}[case.activation]
        return MLP(in_features=inputs, out_features=width, num_cells=list(case.hidden), activation_class=activation)

    body: Any = network(outputs)
    keys = ["logits"] if discrete else ["loc", "scale"]
    if not discrete:
        body = torch.nn.Sequential(body, AddStateIndependentNormalScale(outputs))
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=keys),
        in_keys=keys,
        spec=envs.full_action_spec_unbatched.to("cpu"),
        distribution_class=torch.distributions.Categorical if discrete else _independent_normal,
        return_log_prob=True,
    )
    critic = ValueOperator(network(1), in_keys=["observation"])
    advantage = GAE(gamma=case.gamma, lmbda=case.gae_lambda, value_network=critic)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=case.clip,
        entropy_coeff=case.entropy,
        entropy_bonus=case.entropy > 0,
        critic_coeff=case.value,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimiser = torch.optim.Adam(loss.parameters(), lr=case.learning_rate)
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(case.batch), sampler=SamplerWithoutReplacement(), batch_size=case.minibatch
    )
    collector = Collector(envs, actor, frames_per_batch=case.batch, total_frames=-1)
    steps = 0
    with suppress(Enough):
        for rollout in collector:
            with torch.no_grad():
                advantage(rollout)
            buffer.empty()
            buffer.extend(rollout.reshape(-1))
            for _ in range(case.epochs):
                for minibatch in buffer:
                    losses = loss(minibatch)
                    total = losses["loss_objective"] + losses["loss_critic"]
                    optimiser.zero_grad()
                    total.backward()
                    torch.nn.utils.clip_grad_norm_(loss.parameters(), case.gradient_norm)
                    optimiser.step()
            steps += case.batch
            training.iteration(steps)
    training.report()
    collector.shutdown()


def _independent_normal(loc: Any, scale: Any) -> Any:
    """A diagonal normal distribution over whole actions."""
    from torch.distributions import Independent, Normal

    return Independent(Normal(loc, scale), 1)


if __name__ == "__main__":
    train(begin("torchrl", "torchrl", arguments(("serial",), threads=1).parse_args()))
