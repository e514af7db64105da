"""PufferLib 3 on equal work: its trainer over its vector environment, in this process or in two others."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from typing import Any

from case import Enough, TimedTraining, arguments, begin


def train(training: TimedTraining) -> None:
    """Train for the training's time and report."""
    os.environ["PATH"] = "/usr/bin:/bin"  # with nvcc on it, the library uses its CUDA kernel, built or not
    import gymnasium
    import pufferlib.vector
    import torch
    from pufferlib.emulation import GymnasiumPufferEnv
    from pufferlib.pufferl import PuffeRL
    from pufferlib.pytorch import layer_init

    torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    case = training.case

    def make(buf: Any = None, seed: int = 0) -> Any:
        return GymnasiumPufferEnv(training.make_env(), buf=buf, seed=seed)

    ways: dict[str, Any] = {"serial": {"backend": "Serial"}, "multi": {"backend": "Multiprocessing", "num_workers": 2}}
    envs = pufferlib.vector.make(make, num_envs=case.envs, seed=training.seed, **ways[training.variant])
    actions = envs.single_action_space
    continuous = isinstance(actions, gymnasium.spaces.Box)
    inputs, outputs = envs.single_observation_space.shape[0], actions.shape[0] if continuous else int(actions.n)

    def network(width: int) -> torch.nn.Sequential:
        sizes = (inputs, *case.hidden)
        parts: list[torch.nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            parts += [layer_init(torch.nn.Linear(before, after)), {"tanh": torch.nn.Tanh}[case.activation]()]
        return torch.nn.Sequential(*parts, layer_init(torch.nn.Linear(sizes[-1], width), std=0.01))

    class Policy(torch.nn.Module):
        """Separate policy and value networks in the form PufferLib expects."""

        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = network(outputs), network(1)
            self.log_std = torch.nn.Parameter(torch.zeros(1, outputs))

        def forward(self, observations: torch.Tensor, state: Any = None) -> tuple[Any, torch.Tensor]:
            rows = observations.reshape(-1, inputs).float()
            mean = self.actor(rows)
            spread = self.log_std.expand_as(mean).exp()
            return torch.distributions.Normal(mean, spread) if continuous else mean, self.critic(rows)

        forward_eval = forward

    class Quiet(PuffeRL):
        """The trainer without its dashboard."""

        def print_dashboard(self, *args: Any, **kwargs: Any) -> None:
            """Print nothing."""

    rollout = min(case.rollout, case.minibatch)  # a minibatch must hold whole rollouts; the batch stays the same
    trainer = Quiet(
        {
            "env": training.env,
            "name": "training",
            "project": "training",
            "data_dir": "experiments",
            "seed": training.seed,
            "torch_deterministic": True,
            "cpu_offload": False,
            "device": "cpu",
            "optimizer": "adam",
            "anneal_lr": False,
            "precision": "float32",
            "total_timesteps": 10**9,
            "learning_rate": case.learning_rate,
            "gamma": case.gamma,
            "gae_lambda": case.gae_lambda,
            "update_epochs": case.epochs,
            "clip_coef": case.clip,
            "vf_coef": case.value,
            "vf_clip_coef": 1e6,
            "max_grad_norm": case.gradient_norm,
            "ent_coef": case.entropy,
            "adam_beta1": 0.9,
            "adam_beta2": 0.999,
            "adam_eps": 1e-8,
            "checkpoint_interval": 10**9,
            "batch_size": case.batch,
            "minibatch_size": case.minibatch,
            "max_minibatch_size": case.minibatch,
            "bptt_horizon": rollout,
            "compile": False,
            "compile_mode": "default",
            "compile_fullgraph": False,
            "use_rnn": False,
            "vtrace_rho_clip": 1.0,
            "vtrace_c_clip": 1.0,
            "prio_alpha": 0.0,
            "prio_beta0": 1.0,
        },
        envs,
        Policy(),
    )
    with suppress(Enough):
        while True:
            trainer.evaluate()
            trainer.train()
            training.iteration(trainer.global_step)
    training.report()
    trainer.utilization.stop()
    envs.close()


if __name__ == "__main__":
    train(begin("pufferlib", "pufferlib", arguments(("serial", "multi"), threads=1).parse_args()))
