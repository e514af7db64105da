"""Every knob of every stage on one page, with its default and what it does."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Scalar = bool | int | float | str


class Section(BaseModel):
    """A frozen group of settings; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class EnvSettings(Section):
    """The game itself."""

    action_repeat: int | None = Field(None, ge=1)
    """Ticks (soccer) or env steps (Gymnasium) that one action lasts; unset: 4 for soccer, 1 for Gymnasium."""
    match_seconds: float = Field(60.0, gt=0)
    """Length of a soccer match in game time; a tie adds at most half of it."""
    actions: Literal["discrete", "multi_discrete", "continuous"] = "discrete"
    """How soccer's controls are offered."""
    random_starts: float = Field(0.0, ge=0, le=1)
    """Share of soccer's kick-offs that start from a random position instead, in training only."""
    options: dict[str, Scalar] = {}
    """Keyword arguments for `gymnasium.make`."""


class RewardSettings(Section):
    """What is rewarded."""

    mode: Literal["dense", "sparse"] = "dense"
    """`sparse` keeps only the terms that decide the game."""
    weights: dict[str, float] = {}
    """Weight of each reward term by name; a term that is not named keeps the env's own weight."""


class PolicySettings(Section):
    """The network that is trained."""

    hidden: tuple[int, ...] = (64, 64)
    """Width of each hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Non-linearity between layers."""
    shared: bool = True
    """One trunk for policy and value, or two separate networks."""
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
    learning_rate: float = Field(3e-4, gt=0)
    """Step size of Adam."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the settings named in `ppo.scheduled` change over `ppo.schedule_steps`."""
    schedule_steps: int = Field(0, ge=0)
    """Length of the schedule in steps, whatever the length of the run; 0: constant."""
    schedule_end: float = Field(0.0, ge=0)
    """What is left at the end of the schedule, as a share of the start."""
    scheduled: tuple[Literal["learning_rate", "clip", "entropy"], ...] = ("learning_rate",)
    """The settings that follow the schedule."""
    gamma: float = Field(0.99, ge=0, le=1)
    """Discount per step."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """Bias against variance in the advantage."""
    clip: float = Field(0.2, gt=0)
    """How far the probability ratio may move before its gradient is cut."""
    clip_value: float = Field(0.0, ge=0)
    """The same for the value, in units of the normalised return; 0: off."""
    value: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    entropy: float = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    max_grad_norm: float = Field(0.5, gt=0)
    """Gradients longer than this are shortened to it."""
    target_kl: float = Field(0.0, ge=0)
    """Stop an iteration's updates when the KL divergence passes this; 0: never."""
    normalise_advantage: bool = True
    """Scale advantages to mean 0 and deviation 1 within each minibatch."""
    normalise_obs: bool = True
    """Scale observations by running statistics."""
    normalise_return: bool = True
    """Scale rewards by the running deviation of the discounted return."""
    adam_eps: float = Field(1e-5, gt=0)
    """Adam's epsilon."""


class PlanSettings(Section):
    """Speed switches: they change how fast a run is, and `lag` how fresh its data."""

    envs: int | None = Field(None, ge=1)
    """Environments in all; unset: chosen for the env."""
    workers: int | None = Field(None, ge=1)
    """Actor processes; unset: one per usable core."""
    lag: int | None = Field(None, ge=0, le=1)
    """0: every rollout is made with the newest weights. 1: rollout k is made with the weights of update k-1
    while the learner works. Unset: 0."""
    collector: Literal["auto", "local", "actors"] = "auto"
    """`local` steps everything in this process, `actors` in worker processes."""
    learner: Literal["auto", "fused", "torch"] = "auto"
    """`fused` runs forward, loss, backward and Adam as one compiled kernel; `torch` is the reference."""
    threads: int | None = Field(None, ge=1)
    """Threads of the learner; unset: chosen for the machine."""
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
    system: int = Field(1_000_000, ge=0)
    """CPU, memory and disk."""
    gradients: int = Field(0, ge=0)
    """Gradient norm of each layer."""
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


class Settings(Section):
    """All settings of a run."""

    env: EnvSettings = EnvSettings()
    rewards: RewardSettings = RewardSettings()
    policy: PolicySettings = PolicySettings()
    ppo: PPOSettings = PPOSettings()
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
    keep: int = Field(3, ge=1)
    """Checkpoints kept besides the best."""
