"""Other names of settings: those of other libraries and trainers, and the old names of our own.

An unknown key that is one of these names gets an error that names the equivalent. `config.py` raises it, by `explain`
for other libraries and by `RENAMED` for our own old keys. `docs/generate.py` prints the table. `setting` is a key
(`ppo.rollout`), an assignment (`plan.precision=bf16`), or empty where there is nothing to set; `note` says what is
different.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

RENAMED = {
    "clone.batch": "clone.batch_size",
    "clone.entropy": "clone.entropy_coef",
    "clone.smallest_std": "clone.min_std",
    "clone.value": "clone.value_coef",
    "evaluation.gate": "evaluation.rollback_after",
    "every.dormant": "every.dormant_units",
    "plan.checkpointing": "plan.activation_checkpointing",
    "ppo.contrast": "ppo.contrastive_coef",
    "ppo.contrast_steps": "ppo.contrastive_steps",
    "ppo.contrast_temperature": "ppo.contrastive_temperature",
    "ppo.demo_weight": "ppo.demo_coef",
    "ppo.entropy": "ppo.entropy_coef",
    "ppo.hold_obs": "ppo.freeze_obs_stats_steps",
    "ppo.order": "ppo.shuffle",
    "ppo.reference_kl": "ppo.reference_kl_coef",
    "ppo.teacher_weight": "ppo.teacher_coef",
    "ppo.tuner_clip": "ppo.epochs_max_clip_fraction",
    "ppo.tuner_kl": "ppo.epochs_target_kl",
    "ppo.value": "ppo.value_coef",
    "ppo.warm_variance": "ppo.value_warmup_explained_variance",
    "rewards.half_life": "rewards.half_life_s",
    "sac.batch": "sac.batch_size",
    "sac.buffer": "sac.buffer_size",
    "sac.critic_norm": "sac.critic_layer_norm",
    "sac.first_temperature": "sac.initial_temperature",
    "sac.warmup": "sac.learning_starts",
}
"""Keys of version 0.1.0 that have a new name."""
REPLACED = {
    "ppo.schedule": 'schedules.ppo.learning_rate="linear to 0 over 1000000"',
    "ppo.schedule_steps": 'schedules.ppo.learning_rate="linear to 0 over {value}"',
    "ppo.schedule_end": 'schedules.ppo.learning_rate="linear to {value} over 1000000"',
    "ppo.scheduled": 'schedules.ppo.learning_rate="linear to 0 over 1000000"',
}
"""Keys before 0.1.0 that `schedules` replaces, with the assignment to write."""


class Equivalent(NamedTuple):
    """One name of another library and what it is here."""

    library: str
    name: str
    setting: str
    note: str = ""


TABLE = """
# Rollouts and environments
SB3 | n_steps | ppo.rollout
SB3 | n_envs | plan.envs
SB3 | vec_env_cls | plan.vector | `processes` is SubprocVecEnv, `serial` is DummyVecEnv
SB3 | n_timesteps | steps
SB3 | total_timesteps | steps
SB3 | frame_stack | env.wrappers | use Gymnasium's FrameStackObservation
CleanRL | num_steps | ppo.rollout
CleanRL | num_envs | plan.envs
CleanRL | total_timesteps | steps
CleanRL | env_id |  | the environment is an argument: `slipstream train gymnasium:ID`
RLlib | rollout_fragment_length | ppo.rollout
RLlib | train_batch_size | ppo.rollout | the batch is envs x agents x `ppo.rollout`
RLlib | train_batch_size_per_learner | ppo.rollout | the batch is envs x agents x `ppo.rollout`
RLlib | num_env_runners | plan.workers
RLlib | num_rollout_workers | plan.workers
RLlib | num_envs_per_env_runner | plan.envs | `plan.envs` counts the environments of all workers
RLlib | num_envs_per_worker | plan.envs | `plan.envs` counts the environments of all workers
RLlib | observation_filter | ppo.normalise_obs=true | MeanStdFilter
PufferLib | total_timesteps | steps
PufferLib | num_envs | plan.envs
PufferLib | num_workers | plan.workers
PufferLib | async_factor | plan.groups | `plan.lag=1` overlaps rollouts with learning
PufferLib | zero_copy | plan.zero_copy
PyTorch scripts | num_workers | plan.workers
PyTorch scripts | steps_per_update | ppo.rollout
PyTorch scripts | total_steps | steps
PyTorch scripts | timesteps | steps
PyTorch scripts | use_subproc_vec_env | plan.vector=processes
PyTorch scripts | force_dummy_vec_env | plan.vector=serial
PyTorch scripts | batch_inference | plan.collector=batched | every collector acts for all its rows at once
PyTorch scripts | inference_batch_size | plan.groups | the batch is envs x agents / groups
PyTorch scripts | action_repeat | env.action_repeat
PyTorch scripts | frame_skip | env.action_repeat
PyTorch scripts | sparse_reward | rewards.mode=sparse
# Minibatches, epochs and the loss
SB3 | batch_size | ppo.minibatch
SB3 | batch_size | sac.batch_size
SB3 | n_epochs | ppo.epochs
SB3 | learning_rate | ppo.learning_rate
SB3 | learning_rate | sac.learning_rate
SB3 | gamma | ppo.gamma
SB3 | gamma | sac.gamma
SB3 | gae_lambda | ppo.gae_lambda
SB3 | clip_range | ppo.clip
SB3 | clip_range_vf | ppo.clip_value
SB3 | ent_coef | ppo.entropy_coef
SB3 | ent_coef | sac.temperature
SB3 | vf_coef | ppo.value_coef
SB3 | max_grad_norm | ppo.max_grad_norm
SB3 | target_kl | ppo.target_kl | checked after every epoch; SB3 checks every minibatch against 1.5 times the target
SB3 | normalize_advantage | ppo.normalise_advantage
SB3 | norm_obs | ppo.normalise_obs
SB3 | norm_reward | ppo.normalise_return
SB3 | use_sde |  | state-dependent exploration is not implemented
SB3 | sde_sample_freq |  | state-dependent exploration is not implemented
CleanRL | num_minibatches | ppo.minibatch | `ppo.minibatch` counts samples, not minibatches
CleanRL | minibatch_size | ppo.minibatch
CleanRL | update_epochs | ppo.epochs
CleanRL | learning_rate | ppo.learning_rate
CleanRL | gamma | ppo.gamma
CleanRL | gae_lambda | ppo.gae_lambda
CleanRL | clip_coef | ppo.clip
CleanRL | clip_vloss | ppo.clip_value | `ppo.clip_value` is the range; 0 is off
CleanRL | ent_coef | ppo.entropy_coef
CleanRL | vf_coef | ppo.value_coef
CleanRL | max_grad_norm | ppo.max_grad_norm
CleanRL | target_kl | ppo.target_kl | on the mean of an epoch; CleanRL takes its last minibatch
CleanRL | norm_adv | ppo.normalise_advantage
CleanRL | anneal_lr | schedules.ppo.learning_rate="linear to 0"
RLlib | lr | ppo.learning_rate
RLlib | lr | sac.learning_rate
RLlib | lr_schedule | schedules.ppo.learning_rate="linear to 0 over 1000000"
RLlib | lambda | ppo.gae_lambda
RLlib | lambda_ | ppo.gae_lambda
RLlib | gamma | ppo.gamma
RLlib | sgd_minibatch_size | ppo.minibatch
RLlib | minibatch_size | ppo.minibatch
RLlib | num_sgd_iter | ppo.epochs
RLlib | num_epochs | ppo.epochs
RLlib | clip_param | ppo.clip
RLlib | vf_clip_param | ppo.clip_value
RLlib | entropy_coeff | ppo.entropy_coef
RLlib | vf_loss_coeff | ppo.value_coef
RLlib | kl_target | ppo.target_kl | `ppo.target_kl` stops the epochs; there is no KL penalty
RLlib | kl_coeff | ppo.target_kl | `ppo.target_kl` stops the epochs; there is no KL penalty
RLlib | grad_clip | ppo.max_grad_norm
PufferLib | update_epochs | ppo.epochs
PufferLib | minibatch_size | ppo.minibatch
PufferLib | vtrace_rho_clip | ppo.vtrace_rho
PufferLib | vtrace_c_clip | ppo.vtrace_c
PufferLib | prio_alpha | ppo.priority_alpha
PufferLib | prio_beta0 | ppo.priority_beta
PufferLib | anneal_lr | schedules.ppo.learning_rate="linear to 0"
PyTorch scripts | ppo_epochs | ppo.epochs
PyTorch scripts | entropy_coef | ppo.entropy_coef
PyTorch scripts | value_coef | ppo.value_coef
# The policy
SB3 | net_arch | policy.hidden
SB3 | activation_fn | policy.activation
SB3 | ortho_init | policy.init | `orthogonal` or `uniform`
SB3 | log_std_init | policy.log_std
SB3 | squash_output | policy.squash
SB3 | lstm_hidden_size | policy.memory_size
SB3 | n_lstm_layers | policy.memory_layers
SB3 | policy_kwargs | policy.hidden | the other settings of the network are in `policy` too
SB3 | features_dim | policy.features
RLlib | fcnet_hiddens | policy.hidden
RLlib | fcnet_activation | policy.activation
RLlib | vf_share_layers | policy.shared
RLlib | use_lstm | policy.memory=lstm
RLlib | lstm_cell_size | policy.memory_size
RLlib | max_seq_len | policy.sequence
PufferLib | bptt_horizon | policy.sequence
PufferLib | use_rnn | policy.memory=lstm
PyTorch scripts | rnn_type | policy.memory
PyTorch scripts | sequence_length | policy.sequence
PyTorch scripts | hidden_size | policy.hidden
PyTorch scripts | lstm_num_layers | policy.memory_layers
# Off-policy learning
SB3 | buffer_size | sac.buffer_size
SB3 | learning_starts | sac.learning_starts
SB3 | tau | sac.tau
SB3 | train_freq | sac.rollout
SB3 | gradient_steps | sac.updates_per_step | gradient steps per env step
SB3 | target_entropy | sac.target_entropy
SB3 | n_critics | sac.critics
CleanRL | buffer_size | sac.buffer_size
CleanRL | learning_starts | sac.learning_starts
CleanRL | tau | sac.tau
CleanRL | batch_size | sac.batch_size
CleanRL | policy_lr | sac.learning_rate | actor and critics share one learning rate
CleanRL | q_lr | sac.learning_rate | actor and critics share one learning rate
CleanRL | alpha | sac.temperature
CleanRL | autotune | sac.temperature | unset: the temperature is learned
RLlib | initial_alpha | sac.initial_temperature
RLlib | n_step | sac.n_step
RLlib | training_intensity | sac.updates_per_step
RLlib | num_steps_sampled_before_learning_starts | sac.learning_starts
PyTorch scripts | replay_size | sac.buffer_size
PyTorch scripts | utd_ratio | sac.updates_per_step
# Speed
SB3 | device | plan.device
CleanRL | cuda | plan.device=cuda
CleanRL | torch_deterministic | plan.reproducible=true
RLlib | num_gpus | plan.device=cuda | one GPU is used
RLlib | num_gpus_per_learner | plan.device=cuda | one GPU is used
PufferLib | cpu_offload | plan.storage=host
PufferLib | compile | plan.compile
PufferLib | compile_mode | plan.compile_mode
PyTorch scripts | use_amp | plan.precision=bf16
PyTorch scripts | amp_dtype | plan.precision
PyTorch scripts | mixed_precision | plan.precision=bf16
PyTorch scripts | allow_tf32 | plan.precision=tf32
PyTorch scripts | use_torch_compile | plan.compile=true
PyTorch scripts | use_pinned_memory | plan.pinned=true
PyTorch scripts | pin_memory | plan.pinned=true
PyTorch scripts | accumulation_steps | plan.micro_batch | `plan.micro_batch` counts samples, not steps
PyTorch scripts | gradient_accumulation | plan.micro_batch | `plan.micro_batch` counts samples, not steps
PyTorch scripts | gradient_checkpointing | plan.activation_checkpointing
PyTorch scripts | cudnn_benchmark | plan.cudnn_benchmark
PyTorch scripts | cudnn_deterministic | plan.reproducible
PyTorch scripts | nproc_per_node |  | training on several GPUs or machines is not implemented
PyTorch scripts | prefetch_factor |  | demonstrations are memory-mapped and need no loader processes
# Logging, checkpoints and evaluation
SB3 | eval_freq | every.evaluate
SB3 | n_eval_episodes | evaluation.games
SB3 | save_freq | every.checkpoint
SB3 | log_interval | every.log | in steps
SB3 | tensorboard_log |  | every run writes TensorBoard files into its directory
SB3 | verbose |  | progress goes to stderr; `--json` prints the result for scripts
CleanRL | exp_name |  | name the run directory: `--run DIR`
CleanRL | capture_video | every.replay | `slipstream replay FILE --mp4` renders a replay
CleanRL | track |  | every run writes metrics.jsonl and TensorBoard files
RLlib | evaluation_interval | every.evaluate | in steps
RLlib | evaluation_duration | evaluation.games
PufferLib | checkpoint_interval | every.checkpoint | in steps
PyTorch scripts | save_interval | every.checkpoint | in steps
PyTorch scripts | eval_interval | every.evaluate | in steps
PyTorch scripts | debug |  | use `--preset smoke`
"""
"""Library, name, setting and note of each equivalent."""
EQUIVALENTS = tuple(
    Equivalent(*(cell.strip() for cell in line.split("|")))
    for line in TABLE.strip().splitlines()
    if not line.startswith("#")
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
