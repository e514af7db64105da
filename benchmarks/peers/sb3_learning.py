"""Train Stable-Baselines3 or sb3-contrib on one task, then evaluate greedily on a new environment."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import time
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
from case import Case, Replay, claim_stdout
from learning_tasks import TASKS, Task


def model_of(side: str, work: Case | Replay, envs: Any, seed: int) -> Any:
    """The untrained model of a contestant; `sb3-separate` is RecurrentPPO with separate LSTMs for policy and value."""
    import torch
    from sb3 import ppo_options

    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[work.activation]
    if isinstance(work, Replay):
        from stable_baselines3 import SAC

        return SAC(
            "MlpPolicy",
            envs,
            learning_rate=work.learning_rate,
            buffer_size=work.buffer,
            learning_starts=work.warmup,
            batch_size=work.batch,
            tau=work.tau,
            gamma=work.gamma,
            train_freq=1,
            gradient_steps=1,
            policy_kwargs={"net_arch": list(work.hidden), "activation_fn": activation},
            seed=seed,
            device="cpu",
            verbose=0,
        )
    options = ppo_options(work, activation, seed)
    options["policy_kwargs"]["ortho_init"] = work.orthogonal
    if side in ("sb3-recurrent", "sb3-separate"):
        from sb3_contrib import RecurrentPPO

        shared = side == "sb3-recurrent"
        memory = {"lstm_hidden_size": work.memory, "n_lstm_layers": 1}
        options["policy_kwargs"] |= {**memory, "shared_lstm": shared, "enable_critic_lstm": not shared}
        return RecurrentPPO("MlpLstmPolicy", envs, **options)
    if side == "sb3-masked":
        from sb3_contrib import MaskablePPO

        return MaskablePPO("MlpPolicy", envs, **options)
    from stable_baselines3 import PPO

    options["policy_kwargs"]["log_std_init"] = work.log_std
    return PPO("MlpPolicy", envs, **options)


def environments(side: str, task: Task, count: int, seed: int) -> Any:
    """The vector environment of a task for this contestant; SB3's Monitor records unnormalised returns."""
    from stable_baselines3.common.env_util import make_vec_env

    module = importlib.import_module(task.module) if task.module else None
    wrapper = module.Forgiving if module is not None and side == "sb3-recurrent" else None
    # a name instead of a function would create environments with a render mode
    return make_vec_env(partial(gymnasium.make, task.work.env), count, seed, wrapper_class=wrapper)


def play(model: Any, side: str, task: Task, episodes: int, seed: int) -> list[float]:
    """The returns of greedy episodes on a new environment, with frozen normalisation statistics."""
    import numpy as np
    from stable_baselines3.common.vec_env import VecNormalize

    envs = environments(side, task, 1, seed)
    trained = model.get_vec_normalize_env()
    if trained is not None:
        envs = VecNormalize(envs, training=False, norm_reward=False)
        envs.obs_rms = trained.obs_rms
    obs, state, start, returns = envs.reset(), None, np.ones(1, bool), []
    while len(returns) < episodes:
        masks = {"action_masks": np.stack(envs.env_method("action_masks"))} if side == "sb3-masked" else {}
        action, state = model.predict(obs, state=state, episode_start=start, deterministic=True, **masks)
        obs, _, start, infos = envs.step(action)
        returns += [float(info["episode"]["r"]) for info in infos if "episode" in info]
    envs.close()
    return returns


def main() -> None:
    """Parse the options, train, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--contestant", default="sb3")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="steps in all (default: the task's)")
    parser.add_argument("--games", type=int, default=20, help="episodes played after training")
    parser.add_argument("--games-seed", type=int, default=10_000, help="their seed")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(options.threads)
    out = claim_stdout()
    import torch
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(options.threads)
    task, side = TASKS[options.task], options.contestant
    work, steps = task.work, task.whole(options.steps)
    envs = environments(side, task, work.envs, options.seed)
    if isinstance(work, Case) and work.normalise:
        envs = VecNormalize(envs, gamma=work.gamma)
    model = model_of(side, work, envs, options.seed)
    began = time.perf_counter()
    model.learn(steps, progress_bar=False)
    seconds = time.perf_counter() - began
    last = [float(episode["r"]) for episode in model.ep_info_buffer]
    returns = play(model, side, task, options.games, options.games_seed)
    row = {
        "version": version("stable-baselines3" if side == "sb3" else "sb3-contrib"),
        "versions": {name: version(name) for name in ("torch", "gymnasium", "numpy", "stable-baselines3")},
        "python": platform.python_version(),
        "algorithm": type(model).__name__,
        "env": work.env,
        "threads": options.threads,
        **work.shape(),
        "steps": model.num_timesteps,
        "seconds": round(seconds, 3),
        "mean_return": round(sum(last) / len(last), 4) if last else None,
        "score": round(sum(returns) / len(returns), 4),
        "games": len(returns),
    }
    os.write(out, (json.dumps(row) + "\n").encode())
    envs.close()


if __name__ == "__main__":
    main()
