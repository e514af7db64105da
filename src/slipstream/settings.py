"""All settings with their defaults and descriptions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Scalar = bool | int | float | str


class Section(BaseModel):
    """An immutable group of settings; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EnvSettings(Section):
    """The environment."""

    action_repeat: int | None = Field(None, ge=1)
    """Number of ticks (built-in games) or env steps (Gymnasium) that each action is repeated for. Unset: 4 for soccer
    and kart, 1 for Gymnasium."""
    match_seconds: float = Field(60.0, gt=0)
    """Duration of a soccer match in game time; overtime after a tie is at most half of it. Also the time limit of a
    kart lap and of treechop."""
    actions: Literal["discrete", "multi_discrete", "continuous"] = "discrete"
    """Action space of soccer and kart."""
    random_starts: float = Field(0.0, ge=0, le=1)
    """Share of soccer kick-offs and kart laps that start from a random state, in training and in recordings."""
    target: tuple[str, ...] = ()
    """Tasks that the agent is evaluated on, and trained on without a curriculum: one name or a list. Unset: the default
    tasks of the env."""
    options: dict[str, Scalar] = {}
    """Keyword arguments of `gymnasium.make`. For kart: `difficulty`, or `difficulty_low` and `difficulty_high`. For
    treechop: `actions` (8, 14 or full), `look`, `size` (64 or 128) and `scalars`."""
    wrappers: tuple[str | dict[str, dict[str, Any]], ...] = ()
    """Gymnasium wrappers by name, innermost first: `FlattenObservation`, or `{ClipReward: {min_reward: -1}}`."""

    @field_validator("target", mode="before")
    @classmethod
    def _one_target(cls, given: Any) -> Any:
        """One name is a list of one."""
        return (given,) if isinstance(given, str) else given


class RewardSettings(Section):
    """Reward terms and their weights."""

    mode: Literal["dense", "sparse"] = "dense"
    """`sparse` uses only the terms that decide the game."""
    weights: dict[str, float] = {}
    """Weight of each reward term by name. Other terms keep the default weight of the env."""
    groups: dict[str, float] = {}
    """Factor for all terms of a group, such as `ball` or `boost`; 0 disables the group."""
    potential: bool = False
    """Use potential-based shaping, gamma * after - before, for terms that have a potential. It does not change the
    optimal policy."""
    team_spirit: float = Field(0.0, ge=0, le=1)
    """Weight of the team's mean reward in each player's reward."""
    zero_sum: float = Field(0.0, ge=0, le=1)
    """Factor of the other team's mean reward, which is subtracted."""
    normalise: bool = False
    """Divide each term by its running standard deviation, except terms that decide the game."""
    clip: float | None = Field(None, gt=0)
    """Clip the weighted value of each term per step to this magnitude, except terms that decide the game."""
    half_life_s: float | None = Field(None, gt=0)
    """Seconds of game time after which a reward is discounted to half. Sets `ppo.gamma` and `sac.gamma`."""


class PolicySettings(Section):
    """The policy and value network."""

    hidden: tuple[int, ...] = (64, 64)
    """Number of units of each hidden layer."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Activation function."""
    layer_norm: bool = False
    """Apply layer normalisation before each activation."""
    shared: bool = True
    """Use one network for policy and value, or two separate networks."""
    memory: Literal["none", "gru", "lstm"] = "none"
    """Recurrent layer after the hidden layers, or before them with `policy.memory_first`."""
    memory_size: int = Field(256, ge=1)
    """Number of units of the recurrent layer."""
    memory_layers: int = Field(1, ge=1)
    """Number of recurrent layers."""
    memory_first: bool = False
    """Put the recurrent layers before the hidden layers, as Stable-Baselines3 does, instead of after them."""
    sequence: int = Field(16, ge=1)
    """Length of truncated backpropagation through time; `ppo.rollout` is split into sequences of this length."""
    burn_in: int = Field(0, ge=0)
    """Number of steps before each sequence that update its initial state, without gradient."""
    image: Literal["nature", "impala", "frozen"] = "nature"
    """Image encoder: the Nature CNN, the IMPALA residual network, or a frozen pretrained network."""
    trunk: str | None = None
    """The pretrained network of `policy.image=frozen`: a folder, NAME or NAME@PIXELS of a local CLIP model, or
    run:DIR."""
    features: int = Field(256, ge=1)
    """Number of features of each image or set of tokens."""
    network: str | None = None
    """Your own network instead of encoders, hidden layers and memory: MODULE:CLASS in a module of `--import`."""
    network_options: dict[str, Any] = {}
    """Keyword arguments of your own network."""
    init: Literal["orthogonal", "uniform"] = "orthogonal"
    """Weight initialisation: orthogonal with a small policy head, or uniform within 1 / sqrt(inputs) as in torch."""
    squash: bool = False
    """Map continuous actions into their bounds with tanh instead of clipping them."""
    log_std: float = 0.0
    """Initial log standard deviation of continuous actions."""


class PPOSettings(Section):
    """Proximal policy optimisation (PPO)."""

    rollout: int = Field(128, ge=1)
    """Number of steps per env in each rollout. The batch size is envs x agents x rollout."""
    minibatch: int = Field(1024, ge=1)
    """Number of samples per gradient step."""
    epochs: int = Field(4, ge=1)
    """Number of passes over each batch."""
    shuffle: Literal["samples", "segments", "time"] = "samples"
    """Unit that is shuffled into minibatches: samples, segments of `policy.sequence` steps, or nothing (`time`).
    Recurrent policies shuffle sequences."""
    learning_rate: float = Field(3e-4, gt=0)
    """Learning rate of the optimiser."""
    optimiser: Literal["adam", "adamw", "muon"] = "adam"
    """Adam; AdamW with `ppo.weight_decay`; or Muon for matrices with Adam for the other parameters."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW and Muon."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per step."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Lambda of generalised advantage estimation: the trade-off between bias and variance."""
    clip: float = Field(0.2, gt=0)
    """Clipping range of the probability ratio."""
    clip_value: float = Field(0.0, ge=0)
    """Clipping range of the value, in units of the normalised return; 0: off."""
    value_coef: float = Field(0.5, ge=0)
    """Coefficient of the value loss."""
    entropy_coef: float = Field(0.01, ge=0)
    """Coefficient of the entropy bonus."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Maximum norm of the gradient; larger gradients are clipped."""
    target_kl: float = Field(0.0, ge=0)
    """Stop after an epoch in which the mean KL divergence exceeded this; 0: never."""
    epochs_max: int = Field(0, ge=0)
    """Adapt the number of epochs between 1 and this, by KL divergence and clip fraction; 0: use `ppo.epochs`."""
    epochs_target_kl: float = Field(0.01, gt=0)
    """Target KL divergence per iteration of the adaptive number of epochs."""
    epochs_max_clip_fraction: float = Field(0.2, gt=0, le=1)
    """Clip fraction above which the adaptive number of epochs is reduced by one."""
    vtrace_rho: float = Field(0.0, ge=0)
    """Clipping threshold rho of V-trace; the importance weights are recomputed before every epoch. 0: plain GAE."""
    vtrace_c: float = Field(1.0, gt=0)
    """Clipping threshold c of V-trace."""
    priority_alpha: float = Field(0.0, ge=0)
    """Sample segments with probability proportional to |advantage| to this power; 0: use each segment once."""
    priority_beta: float = Field(1.0, ge=0, le=1)
    """Exponent of the importance weights that correct prioritised sampling; schedule it to 1."""
    contrastive_coef: float = Field(0.0, ge=0)
    """Coefficient of the contrastive loss (InfoNCE) between the features of a state and of a near future state; 0:
    off."""
    contrastive_temperature: float = Field(0.1, gt=0)
    """Temperature of the contrastive loss."""
    contrastive_steps: int = Field(8, ge=1)
    """Mean distance in steps of the future state in the contrastive loss."""
    centre_rewards: float = Field(0.0, ge=0, le=1)
    """Subtract the running mean reward, updated at this rate per iteration; 0: off."""
    reference: str | None = None
    """A trained agent (run:DIR) for the KL penalty, such as the clone that training starts from."""
    reference_kl_coef: float = Field(0.2, ge=0)
    """Coefficient of the KL divergence from `ppo.reference`."""
    reference_decay: float = Field(0.9995, gt=0, le=1)
    """Factor by which `ppo.reference_kl_coef` decays in each iteration."""
    reference_target: float = Field(0.0, ge=0)
    """Target KL divergence from `ppo.reference`: above twice the target the coefficient grows, below half it shrinks;
    0: off."""
    teacher: str | None = None
    """An agent whose actions the policy imitates in the states that it visits."""
    teacher_coef: float = Field(1.0, ge=0)
    """Coefficient of the loss for imitating `ppo.teacher`; schedule it to 0."""
    demos: str | None = None
    """A demos folder; every iteration also imitates a batch of it."""
    demo_coef: float = Field(0.1, ge=0)
    """Coefficient of the loss for imitating `ppo.demos`."""
    demo_decay: float = Field(0.95, gt=0, le=1)
    """Factor by which `ppo.demo_coef` decays in each iteration."""
    demo_batch: int = Field(1024, ge=1)
    """Number of demo samples in each iteration."""
    value_warmup: int = Field(0, ge=0)
    """Maximum number of iterations at the start that train only the value network."""
    value_warmup_explained_variance: float = Field(1.0, gt=0, le=1)
    """Explained variance of the value at which the value warm-up ends early."""
    freeze_obs_stats_steps: int = Field(0, ge=0)
    """Number of steps at the start in which the observation statistics from `start` are not updated."""
    normalise_advantage: bool = True
    """Normalise advantages to mean 0 and standard deviation 1 in each minibatch."""
    normalise_obs: bool = True
    """Normalise observations by running mean and standard deviation."""
    normalise_return: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    adam_eps: float = Field(1e-5, gt=0)
    """Epsilon of Adam."""


class SACSettings(Section):
    """Soft actor-critic (SAC)."""

    rollout: int = Field(1, ge=1)
    """Number of steps per env between updates."""
    updates_per_step: float = Field(1.0, gt=0)
    """Gradient steps per collected step after `sac.learning_starts` (the update-to-data ratio)."""
    batch_size: int = Field(256, ge=1)
    """Number of samples per gradient step."""
    buffer_size: int = Field(1_000_000, ge=1)
    """Size of the replay buffer in steps."""
    buffer_mib: int = Field(4096, ge=1)
    """Maximum memory of the replay buffer; a larger buffer is an error at the start of the run."""
    learning_starts: int = Field(1_000, ge=0)
    """Number of steps before the first update; the initial policy is nearly uniform."""
    actor_warmup: int = Field(0, ge=0)
    """Number of gradient steps after `sac.learning_starts` that update only the critics."""
    learning_rate: float = Field(3e-4, gt=0)
    """Learning rate of Adam for actor, critics and temperature."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount factor per step."""
    tau: float = Field(0.005, gt=0, le=1)
    """Rate of the soft update of the target critics."""
    n_step: int = Field(1, ge=1)
    """Number of steps of the n-step return."""
    critics: int = Field(2, ge=1)
    """Number of critics. The actor uses the minimum of two critics, or the mean of more."""
    target_critics: int = Field(2, ge=1)
    """Number of randomly chosen critics whose minimum is the target, drawn for every gradient step."""
    critic_layer_norm: bool = False
    """Apply layer normalisation in the critics."""
    temperature: float | None = Field(None, gt=0)
    """Entropy coefficient. Unset: learned to match `sac.target_entropy`."""
    initial_temperature: float = Field(1.0, gt=0)
    """Initial value of a learned temperature; use a low value to start from a good policy."""
    target_entropy: float | None = None
    """Target entropy. Unset: minus the number of continuous actions, or half of the maximum for discrete actions."""
    demos: str | None = None
    """Source of demonstrations in every batch: a demos folder, a SAC run, or a .safetensors file with obs, action (as
    the env takes it), reward, next_obs and terminated."""
    demo_share: float = Field(0.5, gt=0, lt=1)
    """Share of every batch that comes from `sac.demos`."""
    normalise_obs: bool = False
    """Normalise observations by running mean and standard deviation."""


class RecordSettings(Section):
    """Recording of demonstrations by `run`."""

    agent: str | None = None
    """The agent that is recorded. Unset: the expert of the game."""
    games: int = Field(500, ge=1)
    """Number of games to record."""


class CloneSettings(Section):
    """Behaviour cloning."""

    demos: str | None = None
    """The demos folder."""
    epochs: int = Field(10, ge=1)
    """Maximum number of passes over the demos."""
    batch_size: int = Field(1024, ge=1)
    """Number of samples per gradient step."""
    learning_rate: float = Field(3e-3, gt=0)
    """Initial learning rate of Adam, decayed to 0 with a cosine schedule."""
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay (AdamW)."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Maximum norm of the gradient; larger gradients are clipped."""
    value_coef: float = Field(0.5, ge=0)
    """Coefficient of the value loss; the value is trained on the discounted returns of the demos."""
    entropy_coef: float = Field(0.0, ge=0)
    """Coefficient of the entropy bonus."""
    min_std: float = Field(0.05, gt=0)
    """Minimum standard deviation of continuous actions, so that a clone of a deterministic expert still explores."""
    held_out: float = Field(0.1, gt=0, lt=1)
    """Share of the games that is held out for validation."""
    patience: int = Field(3, ge=1)
    """Stop after this many epochs without a better validation loss; the weights of the best epoch are used."""
    max_samples: int | None = Field(None, ge=1)
    """Use whole episodes up to this many steps."""
    window_mib: int = Field(256, ge=1)
    """Size of the window of observations in memory; larger demos are read window by window."""
    normalise_obs: bool = True
    """Normalise observations by the statistics of the demos."""
    quality: float = Field(0.01, ge=0, le=1)
    """Maximum share of bad episodes; more is an error."""
    dagger: int = Field(0, ge=0)
    """Number of DAgger rounds: the clone plays, the expert labels the visited states, and the clone trains on them."""
    expert: str | None = None
    """The expert of DAgger. Unset: the scripted agent that recorded the demos."""
    dagger_games: int = Field(200, ge=1)
    """Number of games of each DAgger round."""


class CurriculumSettings(Section):
    """Curriculum over the tasks of the env; evaluation always uses `env.target`."""

    kind: Literal["none", "staged", "progress", "levels", "learnability", "uniform"] = "none"
    """`staged` trains on one task after another; `progress` prefers tasks whose success rate changes, `levels` tasks
    with large value errors, `learnability` tasks with success rates near one half; `uniform` samples all tasks
    equally."""
    tasks: tuple[str, ...] = ()
    """Tasks of the curriculum in order: TASK, or "TASK vs AGENT". Unset: the tasks of the game."""
    stage: int | None = Field(None, ge=1)
    """Stay at this stage."""
    uniform: float = Field(0.25, ge=0, le=1)
    """Share of games that is sampled uniformly; for `staged`, among the earlier stages."""
    episodes: int = Field(100, ge=1)
    """Minimum number of games of a stage, and the size of the window for its success rate."""
    advance: float = Field(0.6, gt=0, lt=1)
    """Advance to the next stage when the lower 95 % bound of the success rate is above this."""
    demote: float = Field(0.2, ge=0, lt=1)
    """Return to the previous stage when the upper 95 % bound of the success rate is below this."""
    max_steps: int = Field(0, ge=0)
    """Advance to the next stage after this many steps regardless of success; 0: never."""


class LeagueSettings(Section):
    """Self-play in a league: matchmaking, snapshots and ratings."""

    matchmaking: Literal["league", "prioritised", "near", "latest", "uniform"] = "league"
    """`league` mixes self-play, prioritised and verification games by the shares below. The other modes choose every
    opponent by win rate, by similar rating, as the newest, or uniformly."""
    self_play: float = Field(0.35, ge=0, le=1)
    """Share of games against the current policy."""
    verification: float = Field(0.15, ge=0, le=1)
    """Share of games against players that the policy loses to or has not played recently."""
    weighting: Literal["hard", "variance", "linear", "capped"] = "hard"
    """Weight of an opponent with win rate x: (1 - x)^2, x (1 - x), 1 - x, or min(0.5, 1 - x)."""
    decay: float = Field(0.995, gt=0, le=1)
    """Decay of the old results of a pairing with each new result."""
    snapshot: int = Field(1_000_000, ge=1)
    """Minimum number of steps between snapshots; the maximum is twice that."""
    snapshot_win: float = Field(0.7, gt=0, lt=1)
    """Take a snapshot early when the lower 95 % bounds of all win rates are above this."""
    pool: int = Field(32, ge=1)
    """Maximum number of frozen players in the pool, without the anchors; the least useful player is retired."""
    resident: int = Field(8, ge=1)
    """Number of frozen players in use as opponents at the same time."""
    anchors: tuple[str, ...] = ()
    """Players that are always in the pool. Unset: those of the game."""
    main_exploiters: int = Field(0, ge=0)
    """Number of learners that play only against the main agent, to find its weaknesses."""
    league_exploiters: int = Field(0, ge=0)
    """Number of learners that play against the whole pool, to find its weaknesses."""
    exploiter_share: float = Field(0.25, gt=0, lt=1)
    """Share of all steps for exploiters, if there are any."""
    rating_games: int = Field(64, ge=2)
    """Number of rating games of a new snapshot against each selected player."""
    rating_opponents: int = Field(4, ge=1)
    """Number of players selected for rating games, besides the anchors."""
    sprt_games: int = Field(2000, ge=2)
    """Maximum number of games of the sequential test (SPRT) of a snapshot against the best one."""
    sprt_elo: float = Field(35.0, gt=0)
    """Elo difference that the sequential test detects."""
    steps: int = Field(2_000_000, ge=1)
    """Number of steps of the league in `run`."""


class PlanSettings(Section):
    """Performance settings. They change the speed of a run; `lag` also changes the age of its data."""

    envs: int | None = Field(None, ge=1)
    """Total number of environments. Unset: chosen for the env."""
    collector: Literal["auto", "local", "actors", "batched", "device"] = "auto"
    """`local` steps everything in this process; `actors` uses worker processes with a copy of the policy each;
    `batched` evaluates one policy for all environments; `device` runs the whole game on the GPU."""
    vector: Literal["auto", "serial", "threads", "processes"] = "auto"
    """How `local` and `batched` step environments: serially, in threads, or in processes."""
    native: bool | None = None
    """Use the vector env that is registered for a Gymnasium env. Unset: if it is equivalent and faster."""
    workers: int | None = Field(None, ge=1)
    """Number of processes or threads that step environments. Unset: one per usable core."""
    groups: int | None = Field(None, ge=1, le=4)
    """Number of groups of environments: while the policy acts for one group, others step. Unset: chosen."""
    lag: int | None = Field(None, ge=0, le=1)
    """0: every rollout uses the newest weights. 1: rollout k uses the weights of update k-1, and overlaps with
    learning. Unset: 0."""
    zero_copy: bool = True
    """Learn directly from the shared memory that workers write; off: from a copy."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the learner."""
    inference: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the policy in the `batched` collector."""
    storage: Literal["auto", "host", "device"] = "auto"
    """Where the observations of a rollout are stored for a learner on the GPU; `host` saves GPU memory."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """`fused` runs forward, loss, backward and Adam in one compiled kernel; `torch` uses PyTorch."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Precision of the networks in the torch learner and on the GPU; weights, optimiser and losses stay in fp32."""
    compile: bool = False
    """Compile the networks with torch.compile; if compilation fails, the run continues without it."""
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    """Mode of torch.compile."""
    graphs: bool | None = None
    """Use CUDA graphs. Unset: on a GPU."""
    pinned: bool | None = None
    """Use pinned memory for copies to the GPU. Unset: on a GPU."""
    cudnn_benchmark: bool | None = None
    """Use cuDNN autotuning. Unset: for images on a GPU."""
    threads: int | None = Field(None, ge=1)
    """Number of threads of the learner. Unset: chosen for the machine."""
    micro_batch: int | None = Field(None, ge=1)
    """Number of samples per forward and backward pass; the gradients of a minibatch are accumulated. Unset: the whole
    minibatch."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    reproducible: bool = False
    """Use deterministic kernels, no autotuning and one learner thread: identical results, at lower speed."""
    deadline_s: float = Field(60.0, gt=0)
    """Seconds without progress after which an env in a worker process or in another interpreter is reported and the run
    stops."""


class EverySettings(Section):
    """Intervals in steps; 0: off."""

    log: int = Field(10_000, ge=0)
    """A row in metrics.jsonl."""
    checkpoint: int = Field(5_000_000, ge=0)
    """A checkpoint."""
    evaluate: int = Field(0, ge=0)
    """Evaluation games; the best checkpoint is kept by their result."""
    replay: int = Field(0, ge=0)
    """Replays of the best, worst, closest and lost evaluation games."""
    system: int = Field(1_000_000, ge=0)
    """CPU, memory and disk statistics."""
    gradients: int = Field(0, ge=0)
    """Gradient statistics of each layer: norm, maximum, share of zeros, norm relative to the weights."""
    dormant_units: int = Field(0, ge=0)
    """Share of dormant units of each hidden layer."""
    profile: int = Field(0, ge=0)
    """A torch.profiler trace of one iteration, written into the run directory."""


class EvaluationSettings(Section):
    """Evaluation during training and in `run`."""

    games: int = Field(100, ge=1)
    """Number of games of each evaluation during training."""
    opponent: str | None = None
    """The reference opponent. Unset: that of the env."""
    final_games: int = Field(400, ge=1)
    """Number of games against each opponent at the end of `slipstream run`."""
    envs: int = Field(128, ge=1)
    """Number of games played in parallel."""
    rollback_after: int = Field(0, ge=0)
    """Restore the last good weights after this many evaluations in a row below the lower bound of the first evaluation;
    0: never."""


SinkName = Literal["csv", "wandb", "mlflow", "trackio"]
"""The metrics sinks that have a name."""


class Settings(Section):
    """All settings of a run."""

    env: EnvSettings = EnvSettings()
    rewards: RewardSettings = RewardSettings()
    policy: PolicySettings = PolicySettings()
    algorithm: Literal["ppo", "sac"] = "ppo"
    """`ppo` learns from new rollouts (on-policy), `sac` from a replay buffer (off-policy)."""
    ppo: PPOSettings = PPOSettings()
    sac: SACSettings = SACSettings()
    record: RecordSettings = RecordSettings()
    clone: CloneSettings = CloneSettings()
    schedules: dict[str, str] = {}
    """Schedules of settings by dotted key: "linear to 0 over 1000000", "cosine to 1e-5", "linear to 0.05 by
    episode/return_mean from 100 to 475", "constant"."""
    curriculum: CurriculumSettings = CurriculumSettings()
    league: LeagueSettings = LeagueSettings()
    plan: PlanSettings = PlanSettings()
    every: EverySettings = EverySettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    steps: int | None = Field(None, ge=1)
    """Total number of steps."""
    minutes: float | None = Field(None, gt=0)
    """Time limit in minutes."""
    seed: int = Field(0, ge=0)
    """Seed of all random number generators."""
    opponent: str | None = None
    """The agent on the other side. Unset: self-play."""
    start: str | None = None
    """A trained agent (run:DIR) whose policy and normalisation statistics the run starts from."""
    keep: int = Field(3, ge=1)
    """Number of checkpoints to keep besides the best one."""
    sinks: tuple[SinkName, ...] = ()
    """Where metrics go besides metrics.jsonl and TensorBoard: `csv` (metrics.csv in the run directory), `wandb`,
    `mlflow`, `trackio`."""
