"""SAC's gradient steps in torch: the reference for the fused kernels, and the engine for `plan.learner=torch`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from slipstream.algorithms.engine import FAILED_IN_A_ROW, FAILED_STEPS, MAX_FAILED_IN_A_ROW
from slipstream.algorithms.replay_buffer import ReplayBatch, ReplaySampler
from slipstream.algorithms.sac_critics import (
    ACTOR_STEPS,
    ADAM_EPS,
    CRITIC_STEPS,
    CriticEnsemble,
    SACCoefficients,
)
from slipstream.contracts import Array, vector_obs
from slipstream.policies.design import Design
from slipstream.policies.parameter_layout import strip_prefix
from slipstream.policies.torch_policy import ActorCritic, TorchNetwork

MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}


class QNetworks(nn.Module):
    """The critics, with the parameter names of `CriticEnsemble.named`."""

    def __init__(self, design: Design, critics: CriticEnsemble, mean: Tensor, scale: Tensor) -> None:
        """`mean` and `scale` normalise observations and may change between calls; actions are read unchanged."""
        super().__init__()
        policy = design.policy.model_copy(update={"layer_norm": critics.network.norm})
        with torch.random.fork_rng(devices=[]):
            for number in range(critics.count):
                network = TorchNetwork(vector_obs(critics.network.inputs), policy, critics.outputs)
                self.add_module(f"critic{number}", network)
        self.continuous = design.action.kind == "continuous"
        self._mean, self._scale = mean, scale

    def forward(self, numbers: Iterable[int], obs: Tensor, action: Tensor | None) -> Tensor:
        """Q-values [critics, batch] of actions; without actions, of all discrete actions [critics, batch, actions]."""
        mean, scale, inputs = self._mean, self._scale, obs
        if self.continuous and action is not None:
            unchanged = torch.zeros(action.shape[1])
            inputs = torch.cat([obs, action], -1)
            mean, scale = torch.cat([mean, unchanged]), torch.cat([scale, unchanged + 1])
        values = []
        for number in numbers:
            critic = cast(TorchNetwork, self.get_submodule(f"critic{number}"))
            values.append(critic.head(critic.feedforward(inputs, mean, scale)))
        q = torch.stack(values)
        if action is None:
            return q
        return q[..., 0] if self.continuous else q.gather(-1, action.long().expand(len(q), -1, -1))[..., 0]


class TorchSAC:
    """Actor, critics, target critics and temperature as torch parameters, with one Adam optimiser each."""

    def __init__(
        self, design: Design, critics: CriticEnsemble, params_and_stats: Array, threads: int, seed: int
    ) -> None:
        torch.set_num_threads(threads)
        self.design, self.ensemble = design, critics
        self.params, mean, scale = design.split_params_and_stats(params_and_stats)
        self._mean, self._scale = torch.from_numpy(mean), torch.from_numpy(scale)
        self.counters = np.zeros(4, np.int64)
        self.actor = ActorCritic(design)
        _load(self.actor, design.weights.named(self.params))
        self.critics = QNetworks(design, critics, self._mean, self._scale)
        self.targets = QNetworks(design, critics, self._mean, self._scale).requires_grad_(False)
        for networks in (self.critics, self.targets):
            _load(networks, critics.named(critics.initial_weights(seed)))
        self.log_temperature = torch.zeros(1, requires_grad=True)
        groups = {
            "actor": self.actor.parameters(),
            "critics": self.critics.parameters(),
            "temperature": [self.log_temperature],
        }
        self._optimisers = {name: _make_adam(parameters) for name, parameters in groups.items()}
        self._hidden: dict[str, Tensor] = {}
        for name, module in self.actor.hidden_modules().items():
            module.register_forward_hook(self._keep_hidden(name))
        self._squared_norm = torch.zeros(())

    def _keep_hidden(self, name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._hidden[name] = output.detach()

        return keep

    def run(self, sampler: ReplaySampler, coefficients: SACCoefficients, updates: int, totals: Array) -> None:
        """Take gradient steps and add their statistics to `totals`; stop after three failures in a row."""
        for optimiser in self._optimisers.values():
            optimiser.param_groups[0]["lr"] = coefficients.learning_rate
        for _ in range(updates):
            batch = sampler.sample(self.ensemble.count, coefficients.n_step, coefficients.gamma)
            statistics = self._step(batch, coefficients)
            if statistics is None:
                self.counters[FAILED_IN_A_ROW] += 1
                self.counters[FAILED_STEPS] += 1
                if self.counters[FAILED_IN_A_ROW] >= MAX_FAILED_IN_A_ROW:
                    break
                continue
            self.counters[FAILED_IN_A_ROW] = 0
            totals += statistics
        self.design.weights.flatten(_arrays(self.actor), self.params)

    def _step(self, batch: ReplayBatch, coefficients: SACCoefficients) -> Array | None:
        """One step of critics, targets, actor and temperature; return its statistics, or None if not finite.

        The losses use the temperature from before the step.
        """
        alpha = coefficients.temperature or float(self.log_temperature.detach().exp())
        obs, next_obs = torch.from_numpy(batch.obs), torch.from_numpy(batch.next_obs)
        mask, next_mask = (torch.from_numpy(m) if m.size else None for m in (batch.mask, batch.next_mask))
        with torch.no_grad():
            next_value = self._next_value(
                next_obs, next_mask, torch.from_numpy(batch.noise[1]), batch.target_critics.tolist(), alpha
            )
            value_target = torch.from_numpy(batch.reward) + torch.from_numpy(batch.discount) * next_value
        q = self.critics(range(self.ensemble.count), obs, torch.from_numpy(batch.action))
        critic_loss = torch.stack([0.5 * (values - value_target).square().mean() for values in q]).sum()
        if not self._descend("critics", critic_loss, CRITIC_STEPS):
            return None
        with torch.no_grad():
            for target, parameter in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
                target.mul_(1 - coefficients.tau).add_(parameter, alpha=coefficients.tau)
        q_mean = float(q.detach().mean())
        if coefficients.freeze_actor:
            return np.array([0.0, critic_loss.item(), 0.0, q_mean, math.sqrt(self._squared_norm.item()), 1.0])
        log_prob, value = self._actor_terms(obs, mask, torch.from_numpy(batch.noise[0]))
        policy_loss = alpha * log_prob - value
        if not self._descend("actor", policy_loss, ACTOR_STEPS):
            return None
        norm = math.sqrt(self._squared_norm.item())
        if not coefficients.temperature:
            gap = log_prob.detach() + coefficients.target_entropy
            self._descend("temperature", -(self.log_temperature * gap).mean(), None)
        return np.array([policy_loss.item(), critic_loss.item(), log_prob.item(), q_mean, norm, 1.0])

    def _outputs(self, obs: Tensor) -> Tensor:
        """The actor's outputs [batch, outputs]."""
        output: Tensor = self.actor(obs, self._mean, self._scale, torch.zeros(len(obs), 0)).outputs
        return output

    def _next_value(
        self, obs: Tensor, mask: Tensor | None, noise: Tensor, target_critics: list[int], alpha: float
    ) -> Tensor:
        """The soft value of `obs` [batch]: the minimum of the target critics plus alpha times the entropy."""
        outputs = self._outputs(obs)
        if self.design.action.kind == "continuous":
            action, log_prob = self.actor.rsample(outputs, noise)
            q: Tensor = self.targets(target_critics, obs, action).amin(0)
            return q - alpha * log_prob
        log_probs = torch.log_softmax(self.actor.apply_mask(outputs, mask), -1)
        q = self.targets(target_critics, obs, None).amin(0)
        return torch.sum(log_probs.exp() * (q - alpha * log_probs), -1)

    def _actor_terms(self, obs: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The batch means of the actor's log-probability and of the Q-value of its actions."""
        outputs, every = self._outputs(obs), range(self.ensemble.count)
        if self.design.action.kind == "continuous":
            action, log_prob = self.actor.rsample(outputs, noise)
            q = self.critics(every, obs, action)
            return log_prob.mean(), (q.mean(0) if len(q) > 2 else q.amin(0)).mean()
        log_probs = torch.log_softmax(self.actor.apply_mask(outputs, mask), -1)
        with torch.no_grad():
            q = self.critics(every, obs, None)
            value = q.mean(0) if len(q) > 2 else q.amin(0)
        probs = log_probs.exp()
        return (probs * log_probs).sum(-1).mean(), (probs * value).sum(-1).mean()

    def _descend(self, which: str, loss: Tensor, counter: int | None) -> bool:
        """Take one optimiser step; skip it and return False if the loss or the gradient is not finite."""
        optimiser = self._optimisers[which]
        parameters = optimiser.param_groups[0]["params"]
        grads = torch.autograd.grad(loss, parameters)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        self._squared_norm = torch.stack([grad.square().sum() for grad in grads]).sum()
        if not bool(torch.isfinite(loss.detach() + self._squared_norm)):
            return False
        if counter is not None:
            self.counters[counter] += 1
        optimiser.step()
        return True

    def temperature(self) -> float:
        """The learned entropy coefficient (alpha)."""
        return float(self.log_temperature.detach().exp())

    def products(self) -> float:
        """Unknown: returns 0."""
        return 0.0

    def gradient(self) -> Array:
        """The actor's flat gradient of the last step."""
        named = self.actor.named_parameters()
        return self.design.weights.flatten({name: p.grad.numpy() for name, p in named if p.grad is not None})

    def activity(self) -> dict[str, Array]:
        """The mean absolute output of each unit on the last batch, by hidden layer of the actor."""
        return {name: output.abs().mean(0).numpy() for name, output in self._hidden.items()}

    def _trained(self) -> dict[str, nn.Parameter]:
        return dict(self.actor.named_parameters()) | dict(self.critics.named_parameters())

    def _temperature_tensors(self) -> list[Tensor]:
        """The log temperature and its two Adam moments, in the order of the checkpoint's array."""
        return [self.log_temperature, *(self._moment(self.log_temperature, kind) for kind in MOMENTS)]

    def snapshot(self) -> dict[str, Array]:
        """Copy everything that training changes, as named arrays."""
        arrays = {f"target/{name}": array.copy() for name, array in _arrays(self.targets).items()}
        for name, parameter in self._trained().items():
            arrays[f"weight/{name}"] = parameter.detach().numpy().copy()
            arrays |= {f"{kind}/{name}": self._moment(parameter, kind).numpy().copy() for kind in MOMENTS}
        arrays["temperature"] = torch.cat([tensor.detach() for tensor in self._temperature_tensors()]).numpy()
        return arrays | {"counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Restore the arrays that `snapshot` returned."""
        self.counters[:] = arrays["counters"]
        _load(self.targets, strip_prefix(arrays, "target/"))
        with torch.no_grad():
            for name, parameter in self._trained().items():
                parameter.copy_(torch.from_numpy(arrays[f"weight/{name}"]))
                for kind in MOMENTS:
                    self._moment(parameter, kind).copy_(torch.from_numpy(arrays[f"{kind}/{name}"]))
            for tensor, value in zip(self._temperature_tensors(), arrays["temperature"].tolist(), strict=True):
                tensor.fill_(value)
        for name, optimiser in self._optimisers.items():
            for state in optimiser.state.values():
                state["step"].fill_(float(self.counters[CRITIC_STEPS if name == "critics" else ACTOR_STEPS]))
        self.design.weights.flatten(_arrays(self.actor), self.params)

    def _moment(self, tensor: Tensor, kind: str) -> Tensor:
        for optimiser in self._optimisers.values():
            if tensor in optimiser.state:
                moment: Tensor = optimiser.state[tensor][MOMENTS[kind]]
                return moment
        raise KeyError(kind)


def _load(module: nn.Module, named: Mapping[str, Array]) -> None:
    """Copy named arrays into a module's parameters."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(named[name]))


def _arrays(module: nn.Module) -> dict[str, Array]:
    """Views of a module's parameters, by name."""
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def _make_adam(parameters: Iterable[Tensor]) -> torch.optim.Adam:
    """An Adam optimiser whose state exists from the start, so that it can be saved before the first step."""
    tensors = list(parameters)
    adam = torch.optim.Adam(tensors, eps=ADAM_EPS)
    for tensor in tensors:
        zeros = {key: torch.zeros_like(tensor, requires_grad=False) for key in MOMENTS.values()}
        adam.state[tensor] = {"step": torch.zeros(()), **zeros}
    return adam
