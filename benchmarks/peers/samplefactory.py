"""Sample Factory on equal work: its APPO with the rollout workers that suit the machine.

`async` collects during updates, as by default; `sync` waits for updates; `serial` runs everything in one process.
"""

from __future__ import annotations

import logging
import tempfile
from typing import Any

from case import CASES, Enough, TimedTraining, arguments, begin, make_named

WORKERS = 2


def settings(training: TimedTraining, directory: str) -> list[str]:
    """The command line that makes Sample Factory do this training's work."""
    case = training.case
    workers = 1 if training.variant == "serial" else WORKERS
    chosen: dict[str, Any] = {
        "algo": "APPO",
        "env": training.env,
        "experiment": "training",
        "train_dir": directory,
        "device": "cpu",
        "seed": training.seed,
        "serial_mode": training.variant == "serial",
        "async_rl": training.variant == "async",
        "num_workers": workers,
        "num_envs_per_worker": case.envs // workers,
        "worker_num_splits": 2 if training.variant == "async" else 1,
        "batched_sampling": training.variant == "serial",  # faster here, but not with workers
        # a minibatch must hold whole rollouts; the batch stays envs x rollout steps
        "rollout": min(case.rollout, case.minibatch),
        "recurrence": 1,
        "batch_size": case.minibatch,
        "num_batches_per_epoch": case.minibatches,
        "num_epochs": case.epochs,
        "shuffle_minibatches": True,
        "use_rnn": False,
        "actor_critic_share_weights": False,
        "adaptive_stddev": False,
        "nonlinearity": case.activation,
        "normalize_input": False,
        "normalize_returns": False,
        "with_vtrace": False,
        "value_bootstrap": True,
        "learning_rate": case.learning_rate,
        "gamma": case.gamma,
        "gae_lambda": case.gae_lambda,
        "ppo_clip_ratio": case.clip,
        "ppo_clip_value": 1e6,
        "exploration_loss_coeff": case.entropy,
        "value_loss_coeff": case.value,
        "max_grad_norm": case.gradient_norm,
        "decorrelate_envs_on_one_worker": False,
        "log_to_file": False,
        "save_every_sec": 10**6,
        "save_best_every_sec": 10**6,
        "experiment_summaries_interval": 10**6,
        "train_for_env_steps": 10**10,
    }
    more = ["--encoder_mlp_layers", *map(str, case.hidden)]
    if case.frames:
        chosen |= {"actor_critic_share_weights": True, "encoder_conv_architecture": "convnet_atari", "obs_scale": 255.0}
        more = ["--encoder_conv_mlp_layers", "512"]
    return [f"--{key}={value}" for key, value in chosen.items()] + more


def make(name: str, config: Any = None, env_config: Any = None, render_mode: str | None = None) -> Any:
    """One environment, made in the worker that steps it."""
    env = make_named(name)
    return frames_of(env) if CASES["pong"].env == name else env


def frames_of(env: Any) -> Any:
    """The library's own Atari wrappers around a game that is not in its list."""
    import gymnasium
    from sample_factory.envs import env_wrappers as own

    env = own.NoopResetEnv(env, noop_max=30)
    env = own.EpisodicLifeEnv(own.MaxAndSkipEnv(env, skip=4))
    if "FIRE" in env.unwrapped.get_action_meanings():
        env = own.FireResetEnv(env)
    env = gymnasium.wrappers.ResizeObservation(own.ClipRewardEnv(env), (84, 84))
    env = gymnasium.wrappers.FrameStack(gymnasium.wrappers.GrayScaleObservation(env), 4)
    return own.NumpyObsWrapper(env)


def train(training: TimedTraining) -> None:
    """Train for the training's time and report."""
    import torch
    from sample_factory.algo.runners.runner import AlgoObserver, Runner
    from sample_factory.algo.utils.misc import ExperimentStatus
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import make_runner
    from sample_factory.utils.utils import log

    log.setLevel(logging.ERROR)
    torch.set_num_threads(training.threads)

    class Watch(AlgoObserver):
        """Reports the end of each iteration to the clock; the runner ends at its own step limit."""

        def on_training_step(self, runner: Runner, training_iteration_since_resume: int) -> None:
            try:
                training.iteration(sum(runner.env_steps.values()))
            except Enough:
                runner.cfg.train_for_env_steps = 0

    register_env(training.env, make)
    with tempfile.TemporaryDirectory() as directory:
        argv = settings(training, directory)
        parser, _ = parse_sf_args(argv)
        _, runner = make_runner(parse_full_cfg(parser, argv))
        runner.register_observer(Watch())
        if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
            raise SystemExit("Sample Factory did not finish its run.")
        training.returns.extend(float(value) for value in runner.policy_avg_stats.get("reward", [()])[0])
    training.report()


if __name__ == "__main__":
    train(begin("samplefactory", "sample-factory", arguments(("async", "sync", "serial"), threads=1).parse_args()))
