"""What a policy imitates beside its own learning: a teacher's actions in the states that it meets, and demos."""

from __future__ import annotations

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.algorithms.demo_batches import plain_batch, policy_actions
from slipstream.algorithms.engine import POLICY, SAMPLES, Batch, Coefficients, Engine
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Agent, Array, EnvSpec
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice
from slipstream.errors import DemoError
from slipstream.policies.design import Design
from slipstream.settings import PPOSettings, Settings
from slipstream.system.rng import make_streams


class ImitationLoss:
    """Takes gradient steps of imitation after those of PPO."""

    def __init__(self, design: Design, teacher: Agent | None, demos: Demos | None, rows: int, seed: int) -> None:
        self.design = design
        self.pull = np.ones(1, np.float64)
        """What is left of the weight of the demos."""
        self._teacher, self._demos = teacher, demos
        self.random = np.random.Generator(np.random.PCG64([seed, 0x7EAC]))
        self._streams = make_streams(seed, "teacher", 0, rows)
        self._starts = demos.sequences(design.sequence) if demos is not None else np.zeros(0, np.int64)

    def teach(
        self, now: PPOSettings, rollout: Rollout, batch: Batch, engine: Engine, coefficients: Coefficients, order: Array
    ) -> dict[str, float]:
        """Imitate, and say how unlike teacher and demos the policy is."""
        row = {}
        coefficients = coefficients._replace(
            imitate=True,
            value=0.0,
            entropy=0.0,
            reference_kl=0.0,
            contrast=0.0,
            normalise_advantage=False,
        )
        ones = np.ones(len(batch.advantage), np.float32)
        if self._teacher is not None and now.teacher_coef:
            action = policy_actions(self.design, self._ask(rollout)).reshape(batch.action.shape)
            asked = batch._replace(action=action, advantage=ones)
            row["ppo/teacher_loss"] = _run(engine, asked, order, coefficients._replace(policy=now.teacher_coef))
            row["ppo/teacher_weight"] = now.teacher_coef
        if self._demos is not None and now.demo_coef:
            weight = now.demo_coef * float(self.pull[0])
            shown = self._show(now.demo_batch, batch)
            everything = np.arange(len(shown.weight) // shown.sequence)
            row["ppo/demo_loss"] = _run(engine, shown, everything, coefficients._replace(policy=weight))
            row["ppo/demo_weight"] = weight
            self.pull *= now.demo_decay
        return row

    def arrays(self) -> dict[str, Array]:
        """The state by name, as it stands (not copied)."""
        return {"mentor.pull": self.pull, "mentor.streams": self._streams}

    def _ask(self, rollout: Rollout) -> Array:
        """What the teacher would have done in every state of a rollout."""
        assert self._teacher is not None
        steps, rows = rollout.reward.shape
        action = np.zeros((steps, rows, self.design.action.parts), self.design.action.dtype)
        for t in range(steps):
            self._teacher.act_into(rollout.obs[t], rollout.mask[t], self._streams, action[t])
            self._teacher.begin(np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]))
        return action

    def _show(self, samples: int, batch: Batch) -> Batch:
        """Some sequences of the demos, drawn at random; a memory begins them empty."""
        assert self._demos is not None
        length = self.design.sequence
        starts = self.random.choice(self._starts, max(1, samples // length))
        names = ("obs", "action", *(["mask"] if self.design.action.masked else []))
        columns = {name: self._demos.take_sequences(name, starts, length).swapaxes(0, 1) for name in names}
        flat = {name: array.reshape(length * len(starts), *array.shape[2:]) for name, array in columns.items()}
        return plain_batch(self.design, flat, batch.mean, batch.scale, rows=len(starts))


def _run(engine: Engine, batch: Batch, order: Array, coefficients: Coefficients) -> float:
    totals = engine.run_epoch(batch, order, coefficients)
    return float(totals[POLICY]) / max(1.0, float(totals[SAMPLES]))


def make_imitation_loss(
    settings: Settings, choice: EnvChoice, spec: EnvSpec, design: Design, rows: int
) -> ImitationLoss | None:
    """The mentor that the settings ask for, if any."""
    wanted = settings.ppo
    teacher = load_agent(wanted.teacher, spec, choice) if wanted.teacher else None
    demos = Demos.open(wanted.demos) if wanted.demos else None
    if demos is not None and (demos.schema.obs, demos.schema.action) != (spec.obs, spec.action):
        raise DemoError(
            f"The demos in {demos.path} see and do other things than the agents of `{spec.name}`.",
            "name demos of the same env with the same env settings",
        )
    return ImitationLoss(design, teacher, demos, rows, settings.seed) if teacher or demos else None
