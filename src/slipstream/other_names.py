"""Settings of other libraries and trainers, and the settings that do the same here.

An unknown key that is one of these names gets an error that names the equivalent (see `config.resolve`), and
`docs/generate.py` can print the table. `setting` is a key (`ppo.rollout`), an assignment (`plan.precision=bf16`), or
empty where there is nothing to set; `note` says what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

SB3, CLEANRL, RLLIB, PUFFERLIB, SCRIPTS = "SB3", "CleanRL", "RLlib", "PufferLib", "PyTorch scripts"


class Equivalent(NamedTuple):
    """One name of another library and what it is here."""

    library: str
    name: str
    setting: str
    note: str = ""


EQUIVALENTS: tuple[Equivalent, ...] = (
    # Rollouts and environments
    Equivalent(SB3, "n_steps", "ppo.rollout"),
    Equivalent(SB3, "n_envs", "plan.envs"),
    Equivalent(SB3, "vec_env_cls", "plan.vector", "`processes` is SubprocVecEnv, `serial` is DummyVecEnv"),
    Equivalent(SB3, "n_timesteps", "steps"),
    Equivalent(SB3, "total_timesteps", "steps"),
    Equivalent(SB3, "frame_stack", "env.wrappers", "use Gymnasium's FrameStackObservation"),
    Equivalent(CLEANRL, "num_steps", "ppo.rollout"),
    Equivalent(CLEANRL, "num_envs", "plan.envs"),
    Equivalent(CLEANRL, "total_timesteps", "steps"),
    Equivalent(CLEANRL, "env_id", "", "the environment is an argument: `slipstream train gymnasium:ID`"),
    Equivalent(RLLIB, "rollout_fragment_length", "ppo.rollout"),
    Equivalent(RLLIB, "train_batch_size", "ppo.rollout", "the batch is envs x agents x `ppo.rollout`"),
    Equivalent(RLLIB, "train_batch_size_per_learner", "ppo.rollout", "the batch is envs x agents x `ppo.rollout`"),
    Equivalent(RLLIB, "num_env_runners", "plan.workers"),
    Equivalent(RLLIB, "num_rollout_workers", "plan.workers"),
    Equivalent(RLLIB, "num_envs_per_env_runner", "plan.envs", "`plan.envs` counts the environments of all workers"),
    Equivalent(RLLIB, "num_envs_per_worker", "plan.envs", "`plan.envs` counts the environments of all workers"),
    Equivalent(RLLIB, "observation_filter", "ppo.normalise_obs=true", "MeanStdFilter"),
    Equivalent(PUFFERLIB, "total_timesteps", "steps"),
    Equivalent(PUFFERLIB, "num_envs", "plan.envs"),
    Equivalent(PUFFERLIB, "num_workers", "plan.workers"),
    Equivalent(PUFFERLIB, "async_factor", "plan.groups", "`plan.lag=1` overlaps rollouts with learning"),
    Equivalent(PUFFERLIB, "zero_copy", "plan.zero_copy"),
    Equivalent(SCRIPTS, "num_workers", "plan.workers"),
    Equivalent(SCRIPTS, "steps_per_update", "ppo.rollout"),
    Equivalent(SCRIPTS, "total_steps", "steps"),
    Equivalent(SCRIPTS, "timesteps", "steps"),
    Equivalent(SCRIPTS, "use_subproc_vec_env", "plan.vector=processes"),
    Equivalent(SCRIPTS, "force_dummy_vec_env", "plan.vector=serial"),
    Equivalent(SCRIPTS, "batch_inference", "plan.collector=batched", "every collector acts for all its rows at once"),
    Equivalent(SCRIPTS, "inference_batch_size", "plan.groups", "the batch is envs x agents / groups"),
    Equivalent(SCRIPTS, "action_repeat", "env.action_repeat"),
    Equivalent(SCRIPTS, "frame_skip", "env.action_repeat"),
    Equivalent(SCRIPTS, "sparse_reward", "rewards.mode=sparse"),
    # Minibatches, epochs and the loss
    Equivalent(SB3, "batch_size", "ppo.minibatch"),
    Equivalent(SB3, "batch_size", "sac.batch_size"),
    Equivalent(SB3, "n_epochs", "ppo.epochs"),
    Equivalent(SB3, "learning_rate", "ppo.learning_rate"),
    Equivalent(SB3, "learning_rate", "sac.learning_rate"),
    Equivalent(SB3, "gamma", "ppo.gamma"),
    Equivalent(SB3, "gamma", "sac.gamma"),
    Equivalent(SB3, "gae_lambda", "ppo.gae_lambda"),
    Equivalent(SB3, "clip_range", "ppo.clip"),
    Equivalent(SB3, "clip_range_vf", "ppo.clip_value"),
    Equivalent(SB3, "ent_coef", "ppo.entropy_coef"),
    Equivalent(SB3, "ent_coef", "sac.temperature"),
    Equivalent(SB3, "vf_coef", "ppo.value_coef"),
    Equivalent(SB3, "max_grad_norm", "ppo.max_grad_norm"),
    Equivalent(SB3, "target_kl", "ppo.target_kl"),
    Equivalent(SB3, "normalize_advantage", "ppo.normalise_advantage"),
    Equivalent(SB3, "norm_obs", "ppo.normalise_obs"),
    Equivalent(SB3, "norm_reward", "ppo.normalise_return"),
    Equivalent(SB3, "use_sde", "", "state-dependent exploration is not implemented"),
    Equivalent(SB3, "sde_sample_freq", "", "state-dependent exploration is not implemented"),
    Equivalent(CLEANRL, "num_minibatches", "ppo.minibatch", "`ppo.minibatch` counts samples, not minibatches"),
    Equivalent(CLEANRL, "minibatch_size", "ppo.minibatch"),
    Equivalent(CLEANRL, "update_epochs", "ppo.epochs"),
    Equivalent(CLEANRL, "learning_rate", "ppo.learning_rate"),
    Equivalent(CLEANRL, "gamma", "ppo.gamma"),
    Equivalent(CLEANRL, "gae_lambda", "ppo.gae_lambda"),
    Equivalent(CLEANRL, "clip_coef", "ppo.clip"),
    Equivalent(CLEANRL, "clip_vloss", "ppo.clip_value", "`ppo.clip_value` is the range; 0 is off"),
    Equivalent(CLEANRL, "ent_coef", "ppo.entropy_coef"),
    Equivalent(CLEANRL, "vf_coef", "ppo.value_coef"),
    Equivalent(CLEANRL, "max_grad_norm", "ppo.max_grad_norm"),
    Equivalent(CLEANRL, "target_kl", "ppo.target_kl"),
    Equivalent(CLEANRL, "norm_adv", "ppo.normalise_advantage"),
    Equivalent(CLEANRL, "anneal_lr", 'schedules.ppo.learning_rate="linear to 0"'),
    Equivalent(RLLIB, "lr", "ppo.learning_rate"),
    Equivalent(RLLIB, "lr", "sac.learning_rate"),
    Equivalent(RLLIB, "lr_schedule", 'schedules.ppo.learning_rate="linear to 0 over 1000000"'),
    Equivalent(RLLIB, "lambda", "ppo.gae_lambda"),
    Equivalent(RLLIB, "lambda_", "ppo.gae_lambda"),
    Equivalent(RLLIB, "gamma", "ppo.gamma"),
    Equivalent(RLLIB, "sgd_minibatch_size", "ppo.minibatch"),
    Equivalent(RLLIB, "minibatch_size", "ppo.minibatch"),
    Equivalent(RLLIB, "num_sgd_iter", "ppo.epochs"),
    Equivalent(RLLIB, "num_epochs", "ppo.epochs"),
    Equivalent(RLLIB, "clip_param", "ppo.clip"),
    Equivalent(RLLIB, "vf_clip_param", "ppo.clip_value"),
    Equivalent(RLLIB, "entropy_coeff", "ppo.entropy_coef"),
    Equivalent(RLLIB, "vf_loss_coeff", "ppo.value_coef"),
    Equivalent(RLLIB, "kl_target", "ppo.target_kl", "`ppo.target_kl` stops the epochs; there is no KL penalty"),
    Equivalent(RLLIB, "kl_coeff", "ppo.target_kl", "`ppo.target_kl` stops the epochs; there is no KL penalty"),
    Equivalent(RLLIB, "grad_clip", "ppo.max_grad_norm"),
    Equivalent(PUFFERLIB, "update_epochs", "ppo.epochs"),
    Equivalent(PUFFERLIB, "minibatch_size", "ppo.minibatch"),
    Equivalent(PUFFERLIB, "vtrace_rho_clip", "ppo.vtrace_rho"),
    Equivalent(PUFFERLIB, "vtrace_c_clip", "ppo.vtrace_c"),
    Equivalent(PUFFERLIB, "prio_alpha", "ppo.priority_alpha"),
    Equivalent(PUFFERLIB, "prio_beta0", "ppo.priority_beta"),
    Equivalent(PUFFERLIB, "anneal_lr", 'schedules.ppo.learning_rate="linear to 0"'),
    Equivalent(SCRIPTS, "ppo_epochs", "ppo.epochs"),
    Equivalent(SCRIPTS, "entropy_coef", "ppo.entropy_coef"),
    Equivalent(SCRIPTS, "value_coef", "ppo.value_coef"),
    # The policy
    Equivalent(SB3, "net_arch", "policy.hidden"),
    Equivalent(SB3, "activation_fn", "policy.activation"),
    Equivalent(SB3, "ortho_init", "policy.init", "`orthogonal` or `uniform`"),
    Equivalent(SB3, "log_std_init", "policy.log_std"),
    Equivalent(SB3, "squash_output", "policy.squash"),
    Equivalent(SB3, "lstm_hidden_size", "policy.memory_size"),
    Equivalent(SB3, "n_lstm_layers", "policy.memory_layers"),
    Equivalent(SB3, "policy_kwargs", "policy.hidden", "the other settings of the network are in `policy` too"),
    Equivalent(SB3, "features_dim", "policy.features"),
    Equivalent(RLLIB, "fcnet_hiddens", "policy.hidden"),
    Equivalent(RLLIB, "fcnet_activation", "policy.activation"),
    Equivalent(RLLIB, "vf_share_layers", "policy.shared"),
    Equivalent(RLLIB, "use_lstm", "policy.memory=lstm"),
    Equivalent(RLLIB, "lstm_cell_size", "policy.memory_size"),
    Equivalent(RLLIB, "max_seq_len", "policy.sequence"),
    Equivalent(PUFFERLIB, "bptt_horizon", "policy.sequence"),
    Equivalent(PUFFERLIB, "use_rnn", "policy.memory=lstm"),
    Equivalent(SCRIPTS, "rnn_type", "policy.memory"),
    Equivalent(SCRIPTS, "sequence_length", "policy.sequence"),
    Equivalent(SCRIPTS, "hidden_size", "policy.hidden"),
    Equivalent(SCRIPTS, "lstm_num_layers", "policy.memory_layers"),
    # Off-policy learning
    Equivalent(SB3, "buffer_size", "sac.buffer_size"),
    Equivalent(SB3, "learning_starts", "sac.learning_starts"),
    Equivalent(SB3, "tau", "sac.tau"),
    Equivalent(SB3, "train_freq", "sac.rollout"),
    Equivalent(SB3, "gradient_steps", "sac.updates_per_step", "gradient steps per env step"),
    Equivalent(SB3, "target_entropy", "sac.target_entropy"),
    Equivalent(SB3, "n_critics", "sac.critics"),
    Equivalent(CLEANRL, "buffer_size", "sac.buffer_size"),
    Equivalent(CLEANRL, "learning_starts", "sac.learning_starts"),
    Equivalent(CLEANRL, "tau", "sac.tau"),
    Equivalent(CLEANRL, "batch_size", "sac.batch_size"),
    Equivalent(CLEANRL, "policy_lr", "sac.learning_rate", "actor and critics share one learning rate"),
    Equivalent(CLEANRL, "q_lr", "sac.learning_rate", "actor and critics share one learning rate"),
    Equivalent(CLEANRL, "alpha", "sac.temperature"),
    Equivalent(CLEANRL, "autotune", "sac.temperature", "unset: the temperature is learned"),
    Equivalent(RLLIB, "initial_alpha", "sac.initial_temperature"),
    Equivalent(RLLIB, "n_step", "sac.n_step"),
    Equivalent(RLLIB, "training_intensity", "sac.updates_per_step"),
    Equivalent(RLLIB, "num_steps_sampled_before_learning_starts", "sac.learning_starts"),
    Equivalent(SCRIPTS, "replay_size", "sac.buffer_size"),
    Equivalent(SCRIPTS, "utd_ratio", "sac.updates_per_step"),
    # Speed
    Equivalent(SB3, "device", "plan.device"),
    Equivalent(CLEANRL, "cuda", "plan.device=cuda"),
    Equivalent(CLEANRL, "torch_deterministic", "plan.reproducible=true"),
    Equivalent(RLLIB, "num_gpus", "plan.device=cuda", "one GPU is used"),
    Equivalent(RLLIB, "num_gpus_per_learner", "plan.device=cuda", "one GPU is used"),
    Equivalent(PUFFERLIB, "cpu_offload", "plan.storage=host"),
    Equivalent(PUFFERLIB, "compile", "plan.compile"),
    Equivalent(PUFFERLIB, "compile_mode", "plan.compile_mode"),
    Equivalent(SCRIPTS, "use_amp", "plan.precision=bf16"),
    Equivalent(SCRIPTS, "amp_dtype", "plan.precision"),
    Equivalent(SCRIPTS, "mixed_precision", "plan.precision=bf16"),
    Equivalent(SCRIPTS, "allow_tf32", "plan.precision=tf32"),
    Equivalent(SCRIPTS, "use_torch_compile", "plan.compile=true"),
    Equivalent(SCRIPTS, "use_pinned_memory", "plan.pinned=true"),
    Equivalent(SCRIPTS, "pin_memory", "plan.pinned=true"),
    Equivalent(SCRIPTS, "accumulation_steps", "plan.micro_batch", "`plan.micro_batch` counts samples, not steps"),
    Equivalent(SCRIPTS, "gradient_accumulation", "plan.micro_batch", "`plan.micro_batch` counts samples, not steps"),
    Equivalent(SCRIPTS, "gradient_checkpointing", "plan.activation_checkpointing"),
    Equivalent(SCRIPTS, "cudnn_benchmark", "plan.cudnn_benchmark"),
    Equivalent(SCRIPTS, "cudnn_deterministic", "plan.reproducible"),
    Equivalent(SCRIPTS, "nproc_per_node", "", "training on several GPUs or machines is not implemented"),
    Equivalent(SCRIPTS, "prefetch_factor", "", "demonstrations are memory-mapped and need no loader processes"),
    # Logging, checkpoints and evaluation
    Equivalent(SB3, "eval_freq", "every.evaluate"),
    Equivalent(SB3, "n_eval_episodes", "evaluation.games"),
    Equivalent(SB3, "save_freq", "every.checkpoint"),
    Equivalent(SB3, "log_interval", "every.log", "in steps"),
    Equivalent(SB3, "tensorboard_log", "", "every run writes TensorBoard files into its directory"),
    Equivalent(SB3, "verbose", "", "progress goes to stderr; `--json` prints the result for scripts"),
    Equivalent(CLEANRL, "exp_name", "", "name the run directory: `--run DIR`"),
    Equivalent(CLEANRL, "capture_video", "every.replay", "`slipstream replay FILE --mp4` renders a replay"),
    Equivalent(CLEANRL, "track", "", "every run writes metrics.jsonl and TensorBoard files"),
    Equivalent(RLLIB, "evaluation_interval", "every.evaluate", "in steps"),
    Equivalent(RLLIB, "evaluation_duration", "evaluation.games"),
    Equivalent(PUFFERLIB, "checkpoint_interval", "every.checkpoint", "in steps"),
    Equivalent(SCRIPTS, "save_interval", "every.checkpoint", "in steps"),
    Equivalent(SCRIPTS, "eval_interval", "every.evaluate", "in steps"),
    Equivalent(SCRIPTS, "debug", "", "use `--preset smoke`"),
)


def equivalents(key: str) -> list[Equivalent]:
    """The rows for an unknown key, by its last part; a key with a section keeps to that section where it can."""
    section, _, name = key.replace("-", "_").rpartition(".")
    found = [row for row in EQUIVALENTS if row.name == name]
    return [row for row in found if row.setting.startswith(f"{section}.")] or found if section else found


def explain(key: str) -> tuple[str, str] | None:
    """A sentence that names the equivalent of an unknown key, and a hint; None for a name that is not in the table."""
    rows = equivalents(key)
    if not rows:
        return None
    by_setting: dict[str, list[Equivalent]] = {}
    for row in rows:
        by_setting.setdefault(row.setting, []).append(row)
    name = rows[0].name
    parts = list(_parts(by_setting))
    notes = list(dict.fromkeys(row.note for row in rows if row.note))
    if not any(by_setting):
        return f"`{name}` ({_libraries(rows)}) has no setting here: {notes[0]}.", ""
    first = next(setting for setting in by_setting if setting)
    assignment = first if "=" in first else f"{first}=VALUE"
    hint = f"--set {assignment}" if '"' not in assignment else f"--set '{assignment}'"
    return f"`{name}` is {' or '.join(parts)} here{''.join(f' ({note})' for note in notes)}.", hint


def _parts(by_setting: dict[str, list[Equivalent]]) -> Iterator[str]:
    for setting, rows in by_setting.items():
        if setting:
            yield f"`{setting}` ({_libraries(rows)})" if len(by_setting) > 1 else f"`{setting}`"


def _libraries(rows: list[Equivalent]) -> str:
    return ", ".join(dict.fromkeys(row.library for row in rows))
