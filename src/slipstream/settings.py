"""Every knob of every stage on one page, with its default and what it does."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Scalar = bool | int | float | str


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EnvSettings(Section):
    """The game itself."""

    action_repeat: int | None = Field(None, ge=1)
    """Ticks (soccer, kart) or env steps (Gymnasium) that one action lasts; unset: 4 for the former, 1 for Gymnasium."""
    match_seconds: float = Field(60.0, gt=0)
    """Length of a soccer match in game time; a tie adds at most half of it. The time limit of a lap, or of treechop."""
    actions: Literal["discrete", "multi_discrete", "continuous"] = "discrete"
    """How the controls of soccer and kart are offered."""
    random_starts: float = Field(0.0, ge=0, le=1)
    """Share of soccer's kick-offs and kart's laps that start anywhere instead, in training and in recordings."""
    target: tuple[str, ...] = ()
    """Tasks that the agent is measured on, and trained on without a curriculum; unset: the env's own."""
    options: dict[str, Scalar] = {}
    """Keyword arguments for `gymnasium.make`; for a kart, `difficulty`, or `difficulty_low` and `difficulty_high`; for
    treechop, `scalars` and `look`."""
    wrappers: tuple[str | dict[str, dict[str, Any]], ...] = ()
    """Gymnasium's wrappers by name, innermost first: `FlattenObservation`, or `{ClipReward: {min_reward: -1}}`."""


class RewardSettings(Section):
    """What is rewarded."""

    mode: Literal["dense", "sparse"] = "dense"
    """`sparse` keeps only the terms that decide the game."""
    weights: dict[str, float] = {}
    """Weight of each reward term by name; a term that is not named keeps the env's own weight."""
    groups: dict[str, float] = {}
    """A factor for all terms of a group, such as `ball` or `boost`; 0 switches the group off."""
    potential: bool = False
    """Pay terms that have a potential as gamma * after - before, which cannot change what is best to do."""
    team_spirit: float = Field(0.0, ge=0, le=1)
    """Share of a car's reward that is the mean of its team's."""
    zero_sum: float = Field(0.0, ge=0, le=1)
    """Share of the other team's mean reward that is taken off."""
    normalise: bool = False
    """Divide each term, except those that decide the game, by its running deviation."""
    clip: float | None = Field(None, gt=0)
    """Cut each term's weighted value per step to this size; terms that decide the game are left alone."""
    half_life_s: float | None = Field(None, gt=0)
    """Seconds of game time after which a reward counts half: sets `ppo.gamma` and `sac.gamma`."""


class PolicySettings(Section):
    """The network that is trained."""

    hidden: tuple[int, ...] = (64, 64)
    """Width of each hidden layer."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Non-linearity between layers."""
    layer_norm: bool = False
    """Normalise every hidden layer before its non-linearity."""
    shared: bool = True
    """One trunk for policy and value, or two separate networks."""
    memory: Literal["none", "gru", "lstm"] = "none"
    """What carries the past behind the hidden layers."""
    memory_size: int = Field(256, ge=1)
    """Units of the memory."""
    memory_layers: int = Field(1, ge=1)
    """Memories behind one another."""
    sequence: int = Field(16, ge=1)
    """Steps that gradients flow back through the memory; `ppo.rollout` is cut into sequences of this length."""
    burn_in: int = Field(0, ge=0)
    """Steps before each sequence that freshen its first state, without gradient."""
    image: Literal["nature", "impala", "frozen"] = "nature"
    """How images are read: three convolutions, residual blocks, or a pretrained network that is never trained."""
    trunk: str | None = None
    """That network: a folder, NAME or NAME@PIXELS of a CLIP model that is on this machine, or run:DIR."""
    features: int = Field(256, ge=1)
    """Numbers that each image or set of tokens is read into."""
    init: Literal["orthogonal", "uniform"] = "orthogonal"
    """First weights: orthogonal, with a timid head; or uniform within 1 / sqrt(inputs), biases too, as torch does."""
    squash: bool = False
    """Bend continuous actions into their bounds by tanh instead of cutting them off there."""
    log_std: float = 0.0
    """Starting log standard deviation of continuous actions."""


class PPOSettings(Section):
    """Proximal policy optimisation."""

    rollout: int = Field(128, ge=1)
    """Steps per env and iteration; the batch is envs x agents x rollout."""
    minibatch: int = Field(1024, ge=1)
    """Samples per gradient step."""
    epochs: int = Field(4, ge=1)
    """Passes over each batch."""
    shuffle: Literal["samples", "segments", "time"] = "samples"
    """What is shuffled: samples, segments of `policy.sequence` steps, or nothing. With memory, sequences."""
    learning_rate: float = Field(3e-4, gt=0)
    """Step size of the optimiser."""
    optimiser: Literal["adam", "adamw", "muon"] = "adam"
    """Adam; AdamW, which shrinks weights by `ppo.weight_decay`; Muon for matrices, with Adam for the rest."""
    weight_decay: float = Field(0.0, ge=0)
    """Share of every weight that AdamW and Muon take off per unit of learning rate."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per step."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Bias against variance in the advantage."""
    clip: float = Field(0.2, gt=0)
    """How far the probability ratio may move before its gradient is cut."""
    clip_value: float = Field(0.0, ge=0)
    """The same for the value, in units of the normalised return; 0: off."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    entropy_coef: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Gradients longer than this are shortened to it."""
    target_kl: float = Field(0.0, ge=0)
    """Stop an iteration's updates when the KL divergence passes this; 0: never."""
    epochs_max: int = Field(0, ge=0)
    """Let the epochs find their number between 1 and this, by KL and clip fraction; 0: `ppo.epochs` stands."""
    epochs_target_kl: float = Field(0.01, gt=0)
    """The KL divergence per iteration that the tuner of epochs aims at."""
    epochs_max_clip_fraction: float = Field(0.2, gt=0, le=1)
    """The clip fraction above which the tuner of epochs takes one off."""
    vtrace_rho: float = Field(0.0, ge=0)
    """Limit of V-trace's importance weights on errors, taken anew before every epoch; 0: plain GAE."""
    vtrace_c: float = Field(1.0, gt=0)
    """Limit of V-trace's importance weights along the trace."""
    priority_alpha: float = Field(0.0, ge=0)
    """Draw segments with a chance proportional to |advantage| to this power; 0: each once."""
    priority_beta: float = Field(1.0, ge=0, le=1)
    """How far the drawing is corrected by weights; schedule it to 1."""
    contrastive_coef: float = Field(0.0, ge=0)
    """Weight of the contrastive loss (InfoNCE) that pulls a state's features towards its near future's; 0: off."""
    contrastive_temperature: float = Field(0.1, gt=0)
    """How sharply the contrastive loss tells states apart."""
    contrastive_steps: int = Field(8, ge=1)
    """Mean distance of that future in steps."""
    centre_rewards: float = Field(0.0, ge=0, le=1)
    """Subtract the running mean reward, which moves by this share per iteration; 0: off."""
    reference: str | None = None
    """A trained agent (run:DIR) that the policy is held near, such as the clone it starts from."""
    reference_kl_coef: float = Field(0.2, ge=0)
    """Weight of the KL divergence from `ppo.reference`."""
    reference_decay: float = Field(0.9995, gt=0, le=1)
    """What is left of that weight after each iteration."""
    reference_target: float = Field(0.0, ge=0)
    """Divergence from `ppo.reference` to aim at: above twice that its weight grows, below half it falls; 0: off."""
    teacher: str | None = None
    """Any agent whose actions the policy also imitates in the states that it meets."""
    teacher_coef: float = Field(1.0, ge=0)
    """Weight of that imitation; schedule it to 0."""
    demos: str | None = None
    """A folder of demos that every iteration also imitates some of."""
    demo_coef: float = Field(0.1, ge=0)
    """Weight of that imitation."""
    demo_decay: float = Field(0.95, gt=0, le=1)
    """What is left of that weight after each iteration."""
    demo_batch: int = Field(1024, ge=1)
    """Demo samples of each iteration."""
    value_warmup: int = Field(0, ge=0)
    """Iterations, at most, that train the value's own weights alone, while the policy stands still."""
    value_warmup_explained_variance: float = Field(1.0, gt=0, le=1)
    """The warm-up ends early when the value explains this share of the returns' variance."""
    freeze_obs_stats_steps: int = Field(0, ge=0)
    """Steps at the start in which the statistics of observations stay as `start` brought them."""
    normalise_advantage: bool = True
    """Scale advantages to mean 0 and deviation 1 within each minibatch."""
    normalise_obs: bool = True
    """Scale observations by running statistics."""
    normalise_return: bool = True
    """Scale rewards by the running deviation of the discounted return."""
    adam_eps: float = Field(1e-5, gt=0)
    """Adam's epsilon."""


class SACSettings(Section):
    """Soft actor-critic: learning from a buffer of everything seen."""

    rollout: int = Field(1, ge=1)
    """Steps per env between updates."""
    updates_per_step: float = Field(1.0, gt=0)
    """Gradient steps per step of experience after the warm-up, whatever the number of envs."""
    batch_size: int = Field(256, ge=1)
    """Samples per gradient step."""
    buffer_size: int = Field(1_000_000, ge=1)
    """Steps that the replay buffer holds."""
    buffer_mib: int = Field(4096, ge=1)
    """Memory that the buffer may take; a larger one is refused before the run starts."""
    learning_starts: int = Field(1_000, ge=0)
    """Steps before the first update; the first policy's actions are close to uniform."""
    actor_warmup: int = Field(0, ge=0)
    """Gradient steps, all at once after the warm-up, in which only the critics learn and the actor stays as it is."""
    learning_rate: float = Field(3e-4, gt=0)
    """Step size of Adam for actor, critics and temperature."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per step."""
    tau: float = Field(0.005, gt=0, le=1)
    """How fast target critics follow."""
    n_step: int = Field(1, ge=1)
    """Steps of real reward before the critic's guess."""
    critics: int = Field(2, ge=1)
    """Critics that are trained; the actor follows the lesser of two, and the mean of more."""
    target_critics: int = Field(2, ge=1)
    """Critics, chosen anew at random for every gradient step, whose least value is the target."""
    critic_layer_norm: bool = False
    """Layer norm in the critics."""
    temperature: float | None = Field(None, gt=0)
    """Weight of the entropy; unset: it follows `sac.target_entropy`."""
    initial_temperature: float = Field(1.0, gt=0)
    """Where a temperature that follows the entropy starts; a policy that is good already needs a low one."""
    target_entropy: float | None = None
    """Entropy to keep; unset: minus the number of continuous actions, or half of the most that choices allow."""
    demos: str | None = None
    """What a share of every batch comes from: a folder of demos, a run of SAC, or a .safetensors file of obs, action
    (as the env takes it), reward, next_obs and terminated."""
    demo_share: float = Field(0.5, gt=0, lt=1)
    """That share."""
    normalise_obs: bool = False
    """Scale observations by running statistics."""


class RecordSettings(Section):
    """What `run` records before it clones."""

    agent: str | None = None
    """Who is recorded; unset: the game's own expert."""
    games: int = Field(500, ge=1)
    """Games that it plays."""


class CloneSettings(Section):
    """Behaviour cloning: learning to do as the demos do."""

    demos: str | None = None
    """The folder of demos."""
    epochs: int = Field(10, ge=1)
    """Passes over the demos, at most."""
    batch_size: int = Field(1024, ge=1)
    """Samples per gradient step."""
    learning_rate: float = Field(3e-3, gt=0)
    """Step size of Adam at the start; it falls to 0 along a cosine over the epochs."""
    weight_decay: float = Field(0.0, ge=0)
    """Share of every weight that is taken off per unit of learning rate."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients longer than this are shortened to it."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value's loss: it learns the discounted returns of the demos."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of an entropy bonus, which keeps the clone from being too sure."""
    min_std: float = Field(0.05, gt=0)
    """Least deviation of continuous actions, so that a clone of a sure-footed expert can still explore."""
    held_out: float = Field(0.1, gt=0, lt=1)
    """Share of the games, never single steps, that is kept for validation."""
    patience: int = Field(3, ge=1)
    """Stop after this many epochs without a better validation loss; the best epoch's weights are kept."""
    max_samples: int | None = Field(None, ge=1)
    """Use whole episodes up to this many steps."""
    window_mib: int = Field(256, ge=1)
    """Observations that are held in memory at once; more demos are read window by window."""
    normalise_obs: bool = True
    """Scale observations by the statistics of the demos."""
    quality: float = Field(0.01, ge=0, le=1)
    """Share of bad episodes above which cloning is refused."""
    dagger: int = Field(0, ge=0)
    """Rounds of DAgger: the clone plays, the expert says what it would have done, and the clone learns from it."""
    expert: str | None = None
    """Who says so; unset: the scripted agent that recorded the demos."""
    dagger_games: int = Field(200, ge=1)
    """Games of each round."""


class CurriculumSettings(Section):
    """What is trained on when; evaluation stays on `env.target`."""

    kind: Literal["none", "staged", "progress", "levels", "learnability", "uniform"] = "none"
    """`staged` goes from task to task; `progress` prefers tasks whose success changes, `levels` those whose returns
    surprise the value, `learnability` those won about half the time; `uniform` takes all alike."""
    tasks: tuple[str, ...] = ()
    """What there is to choose from, in order: TASK, or "TASK vs AGENT"; unset: the game's own."""
    stage: int | None = Field(None, ge=1)
    """Stay at this stage, to look into it."""
    uniform: float = Field(0.25, ge=0, le=1)
    """Share of the games that is drawn uniformly, whatever the curriculum prefers; staged: among the stages before."""
    episodes: int = Field(100, ge=1)
    """Games of a stage before it is judged, and the window that is judged by."""
    advance: float = Field(0.6, gt=0, lt=1)
    """Go on to the next stage when the lower 95 % bound of the success rate is above this."""
    demote: float = Field(0.2, ge=0, lt=1)
    """Go back to the stage before when the upper 95 % bound of the success rate is below this."""
    max_steps: int = Field(0, ge=0)
    """Go on to the next stage after this many steps in one, whatever the success; 0: never."""


class LeagueSettings(Section):
    """Self-play in a league: who plays whom, when a copy is frozen, how it is rated."""

    matchmaking: Literal["league", "prioritised", "near", "latest", "uniform"] = "league"
    """`league`: self-play, prioritised and verification games by the shares below. The others draw every opponent one
    way: by win rate, near in rating, the newest, or any."""
    self_play: float = Field(0.35, ge=0, le=1)
    """Share of games against itself."""
    verification: float = Field(0.15, ge=0, le=1)
    """Share of games against those that beat it or that it may have forgotten how to beat."""
    weighting: Literal["hard", "variance", "linear", "capped"] = "hard"
    """How a win rate x becomes a weight: (1 - x)^2, x (1 - x), 1 - x, or min(0.5, 1 - x)."""
    decay: float = Field(0.995, gt=0, le=1)
    """What is left of a pair's old results after each new one."""
    snapshot: int = Field(1_000_000, ge=1)
    """Steps before a copy may be frozen; it is at twice as many, whatever the results."""
    snapshot_win: float = Field(0.7, gt=0, lt=1)
    """A copy is frozen early when the lower 95 % bounds of its win rates are all above this."""
    pool: int = Field(32, ge=1)
    """Frozen players in the pool, pinned ones aside; the least useful one is retired."""
    resident: int = Field(8, ge=1)
    """Frozen players met at any one time."""
    anchors: tuple[str, ...] = ()
    """Players that are always in the pool; unset: the game's own."""
    main_exploiters: int = Field(0, ge=0)
    """Learners that play against the main agent only, to find its weaknesses."""
    league_exploiters: int = Field(0, ge=0)
    """Learners that play against the whole pool, to find what it cannot do."""
    exploiter_share: float = Field(0.25, gt=0, lt=1)
    """Share of all steps that exploiters take, where there are any."""
    rating_games: int = Field(64, ge=2)
    """Games that a new copy plays against each of some others, to be rated."""
    rating_opponents: int = Field(4, ge=1)
    """How many others, the anchors aside."""
    sprt_games: int = Field(2000, ge=2)
    """Games, at most, of the test whether a copy is better than the best so far."""
    sprt_elo: float = Field(35.0, gt=0)
    """How much better it is tested to be."""
    steps: int = Field(2_000_000, ge=1)
    """Steps that `run` spends on the league."""


class PlanSettings(Section):
    """Speed switches: they change how fast a run is, and `lag` how fresh its data."""

    envs: int | None = Field(None, ge=1)
    """Environments in all; unset: chosen for the env."""
    collector: Literal["auto", "local", "actors", "batched", "device"] = "auto"
    """`local` steps everything in this process, `actors` in worker processes that hold a copy of the policy each,
    `batched` asks one policy for all environments, `device` plays the whole game on the GPU."""
    vector: Literal["auto", "serial", "threads", "processes"] = "auto"
    """How `local` and `batched` step environments: one after another, in threads, or in processes."""
    native: bool | None = None
    """Step a Gymnasium env by the vector env that is registered for it; unset: where that is the same and faster."""
    workers: int | None = Field(None, ge=1)
    """Processes or threads that step environments; unset: one per usable core."""
    groups: int | None = Field(None, ge=1, le=4)
    """Groups of environments, of which some step while the policy chooses for another; unset: chosen."""
    lag: int | None = Field(None, ge=0, le=1)
    """0: every rollout is made with the newest weights. 1: rollout k is made with the weights of update k-1
    while the learner works. Unset: 0."""
    zero_copy: bool = True
    """Learn from the memory that workers write into; off: from a copy of it."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the learner computes."""
    inference: Literal["auto", "cpu", "cuda"] = "auto"
    """Where `batched` asks the policy."""
    storage: Literal["auto", "host", "device"] = "auto"
    """Where a rollout's observations are kept for a learner on the GPU: `host` saves the GPU's memory."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """`fused` runs forward, loss, backward and Adam as one compiled kernel; `torch` is the reference."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """In what networks compute on the torch learner and on the GPU; weights, optimiser and losses stay fp32."""
    compile: bool = False
    """Learn by networks that torch.compile has made; where it cannot, the run says so and goes on without."""
    compile_mode: Literal["default", "reduce-overhead", "max-autotune"] = "default"
    """How hard torch.compile tries."""
    graphs: bool | None = None
    """Capture what the GPU does again and again as CUDA graphs; unset: on a GPU."""
    pinned: bool | None = None
    """Page-lock the memory that goes to the GPU, so that copies overlap with work; unset: on a GPU."""
    cudnn_benchmark: bool | None = None
    """Let cuDNN try its ways of convolving at the start; unset: where there are images on a GPU."""
    threads: int | None = Field(None, ge=1)
    """Threads of the learner; unset: chosen for the machine."""
    micro_batch: int | None = Field(None, ge=1)
    """Samples whose activations are held at once: gradients of a minibatch are added up from such parts."""
    activation_checkpointing: bool = False
    """Forget activations on the way forward and compute them again on the way back, to save memory."""
    reproducible: bool = False
    """Deterministic kernels, no trying of ways, one learner thread: the same bits again, at some cost in speed."""
    deadline_s: float = Field(60.0, gt=0)
    """An env in a worker process that makes no progress for this long is named, and the run stops."""


class EverySettings(Section):
    """Intervals in steps; 0 is off."""

    log: int = Field(10_000, ge=0)
    """A row in metrics.jsonl, of the iteration that passes the mark."""
    checkpoint: int = Field(5_000_000, ge=0)
    """A checkpoint."""
    evaluate: int = Field(0, ge=0)
    """Evaluation games; the best checkpoint is kept by their result."""
    replay: int = Field(0, ge=0)
    """Replays of evaluation games: the best, worst, closest and lost ones."""
    system: int = Field(1_000_000, ge=0)
    """CPU, memory and disk."""
    gradients: int = Field(0, ge=0)
    """Gradient statistics of each layer: length, largest part, share of zeros, length against the weights'."""
    dormant_units: int = Field(0, ge=0)
    """The share of dormant units of each hidden layer."""
    profile: int = Field(0, ge=0)
    """A torch-profiler trace of one iteration, written into the run."""


class EvaluationSettings(Section):
    """How the agent is measured, in training and by `run`."""

    games: int = Field(100, ge=1)
    """Games of each evaluation in training."""
    opponent: str | None = None
    """The reference opponent; unset: the env's own."""
    final_games: int = Field(400, ge=1)
    """Games against each opponent at the end of `slipstream run`."""
    envs: int = Field(128, ge=1)
    """Games that are played side by side."""
    rollback_after: int = Field(0, ge=0)
    """Evaluations in a row below the lower bound of what the run started from, after which it goes back; 0: never."""


class Settings(Section):
    """All settings of a run."""

    env: EnvSettings = EnvSettings()
    rewards: RewardSettings = RewardSettings()
    policy: PolicySettings = PolicySettings()
    algorithm: Literal["ppo", "sac"] = "ppo"
    """What learns: `ppo` from fresh rollouts, `sac` from a replay buffer."""
    ppo: PPOSettings = PPOSettings()
    sac: SACSettings = SACSettings()
    record: RecordSettings = RecordSettings()
    clone: CloneSettings = CloneSettings()
    schedules: dict[str, str] = {}
    """Settings that change while a run trains, by dotted key: "linear to 0 over 1000000", "cosine to 1e-5", "linear to
    0.05 by episode/return_mean from 100 to 475", "constant"."""
    curriculum: CurriculumSettings = CurriculumSettings()
    league: LeagueSettings = LeagueSettings()
    plan: PlanSettings = PlanSettings()
    every: EverySettings = EverySettings()
    evaluation: EvaluationSettings = EvaluationSettings()
    steps: int | None = Field(None, ge=1)
    """Stop when this many steps are done in all."""
    minutes: float | None = Field(None, gt=0)
    """Stop after this much time."""
    seed: int = Field(0, ge=0)
    """Everything random follows from it."""
    opponent: str | None = None
    """An agent that plays the other side; unset: plain self-play."""
    start: str | None = None
    """A trained agent (run:DIR) whose policy, normalisers included, the run starts from."""
    keep: int = Field(3, ge=1)
    """Checkpoints kept besides the best."""
