"""Imitation beside PPO: of a teacher's actions in the states of the rollout, and of demos."""

from __future__ import annotations

import numpy as np

from slipstream.agents.specs import load_agent
from slipstream.algorithms.demo_batches import imitation_batch, policy_actions
from slipstream.algorithms.engine import POLICY_LOSS, SAMPLES, Batch, Coefficients, Engine
from slipstream.collect.rollout import Rollout
from slipstream.contracts import Agent, Array, EnvSpec
from slipstream.demos.reader import Demos
from slipstream.envs.registry import EnvChoice
from slipstream.errors import AgentFault, DemoError
from slipstream.policies.design import Design
from slipstream.settings import PPOSettings, Settings
from slipstream.system.rng import make_streams


class ImitationLoss:
    """Takes imitation steps after the gradient steps of PPO."""

    def __init__(
        self,
        design: Design,
        teacher: Agent | None,
        demos: Demos | None,
        rows: int,
        seed: int,
        exact: bool = False,
        agents: int = 1,
    ) -> None:
        """`exact` is whether a resumed run continues its episodes, so that the teacher's memory is kept for it."""
        self.design, self._agents = design, agents
        self.coef_factor = np.ones(1, np.float64)
        """The decayed factor of `ppo.demo_coef`."""
        self._teacher, self._demos = teacher, demos
        self._memory = teacher.memory(rows) if teacher is not None and exact else np.zeros((rows, 0), np.float32)
        self.random = np.random.Generator(np.random.PCG64([seed, 0x7EAC]))
        self._streams = make_streams(seed, "teacher", 0, rows)
        self._starts = demos.sequences(design.sequence) if demos is not None else np.zeros(0, np.int64)

    def teach(
        self, now: PPOSettings, rollout: Rollout, batch: Batch, engine: Engine, coefficients: Coefficients, order: Array
    ) -> dict[str, float]:
        """Take the imitation steps; return their losses and weights as metrics."""
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
            action = policy_actions(self.design, self._teacher_actions(rollout)).reshape(batch.action.shape)
            labelled = batch._replace(action=action, advantage=ones)
            row["ppo/teacher_loss"] = _imitate(engine, labelled, order, coefficients._replace(policy=now.teacher_coef))
            row["ppo/teacher_coef"] = now.teacher_coef
        if self._demos is not None and now.demo_coef:
            weight = now.demo_coef * float(self.coef_factor[0])
            demo = self._demo_batch(now.demo_batch, batch)
            order_of_all = np.arange(len(demo.weight) // demo.sequence)
            row["ppo/demo_loss"] = _imitate(engine, demo, order_of_all, coefficients._replace(policy=weight))
            row["ppo/demo_coef"] = weight
            self.coef_factor *= now.demo_decay
        return row

    def arrays(self) -> dict[str, Array]:
        """The state by name (not copied)."""
        memory = {"mentor.memory": self._memory} if self._memory.size else {}
        return {"mentor.pull": self.coef_factor, "mentor.streams": self._streams} | memory

    def _teacher_actions(self, rollout: Rollout) -> Array:
        """The teacher's action in every state of a rollout."""
        assert self._teacher is not None
        steps, rows = rollout.reward.shape
        action = np.zeros((steps, rows, self.design.action.parts), self.design.action.dtype)
        for t in range(steps):
            try:
                self._teacher.act_into(rollout.obs[t], rollout.mask[t], self._streams, action[t])
            except AgentFault as fault:
                fault.locate(fault.row // self._agents, self._agents)
                raise
            self._teacher.begin(np.flatnonzero(rollout.terminated[t] | rollout.truncated[t]))
        return action

    def _demo_batch(self, samples: int, batch: Batch) -> Batch:
        """A random batch of demo sequences; recurrent states start empty."""
        assert self._demos is not None
        length = self.design.sequence
        starts = self.random.choice(self._starts, max(1, samples // length))
        names = ("obs", "action", *(["mask"] if self.design.action.masked else []))
        columns = {name: self._demos.take_sequences(name, starts, length).swapaxes(0, 1) for name in names}
        flat = {name: array.reshape(length * len(starts), *array.shape[2:]) for name, array in columns.items()}
        return imitation_batch(self.design, flat, batch.mean, batch.scale, rows=len(starts))


def _imitate(engine: Engine, batch: Batch, order: Array, coefficients: Coefficients) -> float:
    totals = engine.run_epoch(batch, order, coefficients)
    return float(totals[POLICY_LOSS]) / max(1.0, float(totals[SAMPLES]))


def make_imitation_loss(
    settings: Settings, choice: EnvChoice, spec: EnvSpec, design: Design, rows: int
) -> ImitationLoss | None:
    """The imitation loss of the settings; None without a teacher or demos."""
    ppo = settings.ppo
    teacher = load_agent(ppo.teacher, spec, choice) if ppo.teacher else None
    demos = Demos.open(ppo.demos) if ppo.demos else None
    if demos is not None and (demos.schema.obs, demos.schema.action) != (spec.obs, spec.action):
        raise DemoError(
            f"`ppo.demos`: the observations or actions of {demos.path} are not those of `{spec.name}`.",
            "use demos of the same env with the same env settings",
        )
    if teacher is None and demos is None:
        return None
    return ImitationLoss(design, teacher, demos, rows, settings.seed, spec.exact, spec.agents)
