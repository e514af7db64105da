"""Samples per second of `imitation`'s behaviour cloning on equal work, and its accuracy on held-out samples.

`transitions` passes the demos as its documentation does, and its own loader makes the batches. `batches` passes
precomputed batches, each an index into tensors, which is the fastest input that it accepts. The policy has no value
network, since it would not be trained; entropy, weight decay, logging and rollouts are off.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from case import BORN, claim_stdout

NEVER = 10**9
JUDGED = 8192  # samples per evaluation batch


class Batches:
    """Shuffled batches of one size; the partial batch is dropped, as in the library's own loader."""

    def __init__(self, obs: Any, acts: Any, size: int) -> None:
        self._obs, self._acts, self._size = obs, acts, size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """One epoch."""
        import torch

        for index in torch.randperm(len(self._obs)).split(self._size):
            if len(index) == self._size:
                yield {"obs": self._obs[index], "acts": self._acts[index]}


def make(options: argparse.Namespace, obs: Any, acts: Any) -> Any:
    """The library's learner with a policy of the case's shape."""
    import numpy as np
    import torch
    from gymnasium import spaces
    from imitation.algorithms.bc import BC
    from imitation.data.types import Transitions
    from stable_baselines3.common.policies import ActorCriticPolicy

    seen = spaces.Box(-np.inf, np.inf, obs.shape[1:], np.float32)
    done = spaces.Discrete(options.actions)
    policy = ActorCriticPolicy(
        seen,
        done,
        lr_schedule=lambda _: options.learning_rate,
        net_arch={"pi": options.hidden, "vf": []},
        activation_fn={"relu": torch.nn.ReLU, "tanh": torch.nn.Tanh}[options.activation],
    )
    if options.loader == "batches":
        demos: Any = Batches(torch.from_numpy(obs), torch.from_numpy(acts), options.batch)
    else:  # BC uses neither next observations nor dones
        nothing = np.full(len(obs), {})
        demos = Transitions(obs=obs, acts=acts, infos=nothing, next_obs=obs, dones=np.zeros(len(obs), bool))
    return BC(
        observation_space=seen,
        action_space=done,
        rng=np.random.default_rng(options.seed),
        policy=policy,
        demonstrations=demos,
        batch_size=options.batch,
        optimizer_kwargs={"lr": options.learning_rate},
        ent_weight=0.0,
        l2_weight=0.0,
        device="cpu",
    )


def main() -> None:
    """Parse the options, train, evaluate, print."""
    parser = argparse.ArgumentParser(description="Clone on equal work and print one JSON object.")
    parser.add_argument("data", type=Path, help="a .npz of train_obs, train_acts, held_obs, held_acts")
    parser.add_argument("--loader", choices=("transitions", "batches"), default="transitions")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True, help="one more than are timed")
    parser.add_argument("--actions", type=int, required=True)
    parser.add_argument("--hidden", type=json.loads, required=True)
    parser.add_argument("--activation", choices=("relu", "tanh"), required=True)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    options = parser.parse_args()
    out = claim_stdout()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    import numpy as np
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    with np.load(options.data) as data:
        train_obs, train_acts, held_obs, held_acts = (
            data[f"{part}_{name}"] for part in ("train", "held") for name in ("obs", "acts")
        )
    learner = make(options, train_obs, train_acts)
    ends: list[float] = []
    learner.train(
        n_epochs=options.epochs,
        on_epoch_end=lambda: ends.append(time.perf_counter()),
        log_interval=NEVER,
        progress_bar=False,
    )
    answers = [
        learner.policy.predict(held_obs[i : i + JUDGED], deterministic=True)[0] for i in range(0, len(held_obs), JUDGED)
    ]
    samples, seconds = len(train_obs) // options.batch * options.batch * (options.epochs - 1), ends[-1] - ends[0]
    row = {
        "peer": "imitation",
        "version": version("imitation"),
        "versions": {name: version(name) for name in ("torch", "stable-baselines3", "gymnasium", "numpy")},
        "threads": options.threads,
        "epochs": options.epochs,
        "samples": samples,
        "seconds": round(seconds, 4),
        "samples_per_second": round(samples / seconds, 1),
        "accuracy": float((np.concatenate(answers) == held_acts).mean()),
        "start_seconds": round(ends[0] - BORN, 3),
    }
    os.write(out, (json.dumps(row) + "\n").encode())


if __name__ == "__main__":
    main()
