"""SAC's gradient steps in torch: what the fused kernel is held to, and the way for machines where torch is wanted."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.algorithms.replay_buffer import ReplaySampler
from slipstream.algorithms.sac_critics import ADAM_EPS, Critics, SACCoefficients
from slipstream.contracts import Array
from slipstream.engines.weights_io import strip_prefix
from slipstream.policies.design import Design
from slipstream.policies.linear_algebra import OBS_LIMIT
from slipstream.policies.parameter_layout import Chain

Named = dict[str, Tensor]
ACTIVATIONS = {"tanh": torch.tanh, "relu": torch.relu, "elu": functional.elu}
LOG_STD = -20.0, 2.0
MASKED = -1e9
MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}


def run_chain(weights: Mapping[str, Tensor], name: str, chain: Chain, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The outputs of a chain whose weights stand under `name`, and those of its hidden layers."""
    hidden = []
    for number in range(len(chain.hidden)):
        stem = f"{name}.layers.{number}"
        x = functional.linear(x, weights[f"{stem}.weight"], weights[f"{stem}.bias"])
        if chain.norm:
            stem = f"{name}.norms.{number}"
            x = functional.layer_norm(x, x.shape[-1:], weights[f"{stem}.weight"], weights[f"{stem}.bias"])
        x = ACTIVATIONS[chain.activation](x)
        hidden.append(x)
    return functional.linear(x, weights[f"{name}.head.weight"], weights[f"{name}.head.bias"]), hidden


class TorchSAC:
    """Tensors by name and three Adams, behind the same door as the fused kernel."""

    def __init__(self, design: Design, critics: Critics, params_and_stats: Array, threads: int, seed: int) -> None:
        torch.set_num_threads(threads)
        self.design, self.critics = design, critics
        self.params, self._mean, self._scale = design.split_params_and_stats(params_and_stats)
        self.counters = np.zeros(4, np.int64)
        first = critics.named(critics.first(seed))
        self.actor = _leaves(design.weights.named(self.params))
        self.values = _leaves(first)
        self.targets = {name: torch.from_numpy(array.copy()) for name, array in first.items()}
        self.log_temperature = torch.zeros(1, requires_grad=True)
        groups = {"actor": self.actor.values(), "critics": self.values.values(), "temperature": [self.log_temperature]}
        self._adams = {name: _adam(tensors) for name, tensors in groups.items()}
        self._activity: dict[str, Array] = {}
        self._squares = torch.zeros(())

    def run(self, feed: ReplaySampler, coefficients: SACCoefficients, updates: int, totals: Array) -> None:
        """Take gradient steps and add up `totals`; three failed ones in a row end it."""
        for adam in self._adams.values():
            adam.param_groups[0]["lr"] = coefficients.learning_rate
        for _ in range(updates):
            feed.draw(self.critics.count, coefficients.n_step, coefficients.gamma)
            told = self._step(feed, coefficients)
            if told is None:
                self.counters[1:3] += 1
                if self.counters[1] >= 3:
                    break
                continue
            self.counters[1] = 0
            totals += told
        self.design.weights.flatten(_arrays(self.actor), self.params)

    def _step(self, feed: ReplaySampler, coefficients: SACCoefficients) -> Array | None:
        """One gradient step: temperature, critics, actor, targets; what it adds up, or None if it was not finite.

        The temperature that the losses use is the one from before the step.
        """
        sample = feed.sample
        alpha = coefficients.temperature or float(self.log_temperature.detach().exp())
        obs, next_obs = self._normalised(sample.obs), self._normalised(sample.next_obs)
        mask, next_mask = (torch.from_numpy(m) if m.size else None for m in (sample.mask, sample.next_mask))
        with torch.no_grad():
            value_target = torch.from_numpy(sample.reward) + torch.from_numpy(sample.discount) * self._worth(
                next_obs, next_mask, torch.from_numpy(sample.noise[1]), feed.picked.tolist(), alpha
            )
        told = self._told(self.values, range(self.critics.count), obs, torch.from_numpy(sample.action))
        losses = [0.5 * (values - value_target).square().mean() for values in told]
        critic_loss = torch.stack(losses).sum()
        if not self._move("critics", critic_loss, 0):
            return None
        with torch.no_grad():
            for name, target in self.targets.items():
                target.mul_(1 - coefficients.tau).add_(self.values[name], alpha=coefficients.tau)
        q = float(torch.stack(told).detach().mean())
        if coefficients.frozen:
            return np.array([0.0, critic_loss.item(), 0.0, q, math.sqrt(self._squares.item()), 1.0])
        log_prob, worth = self._acted(obs, mask, torch.from_numpy(sample.noise[0]))
        policy_loss = alpha * log_prob - worth
        if not self._move("actor", policy_loss, 3):
            return None
        norm = math.sqrt(self._squares.item())
        if not coefficients.temperature:
            self._move(
                "temperature", -(self.log_temperature * (log_prob.detach() + coefficients.target_entropy)).mean(), None
            )
        return np.array([policy_loss.item(), critic_loss.item(), log_prob.item(), q, norm, 1.0])

    def _normalised(self, obs: Array) -> Tensor:
        limit = float(OBS_LIMIT)
        numbers, scale = torch.from_numpy((obs - self._mean) * self._scale), torch.from_numpy(self._scale)
        return torch.where(scale == 1, numbers, numbers.clamp(-limit, limit))

    def _distribution(self, obs: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Squashed actions and their log-probabilities; or the probabilities of all choices and their logarithms."""
        told, hidden = run_chain(self.actor, "policy", self.design.stack.chains[0], obs)
        self._activity = {f"policy.{n}": x.detach().abs().mean(0).numpy() for n, x in enumerate(hidden)}
        if self.design.action.kind != "continuous":
            told = told if mask is None else torch.where(mask != 0, told, MASKED)
            return torch.softmax(told, -1), torch.log_softmax(told, -1)
        mean, log_dev = told.chunk(2, -1)
        log_dev = log_dev.clamp(*LOG_STD)
        raw = mean + noise * log_dev.exp()
        thinned = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        log_prob = -(0.5 * noise.square() + log_dev + 0.5 * math.log(2 * math.pi) + thinned).sum(-1)
        return torch.tanh(raw), log_prob

    def _told(self, weights: Named, numbers: Iterable[int], obs: Tensor, action: Tensor | None) -> list[Tensor]:
        """What critics say of actions [batch], or, without one, of all choices [batch, choices]."""
        chain, discrete = self.critics.chain, self.design.action.kind != "continuous"
        x = obs if discrete or action is None else torch.cat([obs, action], -1)
        told = [run_chain(weights, f"critic{number}", chain, x)[0] for number in numbers]
        if action is None:
            return told
        return [t.gather(-1, action.long())[:, 0] if discrete else t[:, 0] for t in told]

    def _worth(self, obs: Tensor, mask: Tensor | None, noise: Tensor, picked: list[int], alpha: float) -> Tensor:
        """The least of the picked targets' values, and the entropy's worth."""
        first, second = self._distribution(obs, mask, noise)
        if self.design.action.kind == "continuous":
            return torch.stack(self._told(self.targets, picked, obs, first)).amin(0) - alpha * second
        values = torch.stack(self._told(self.targets, picked, obs, None)).amin(0)
        return (first * (values - alpha * second)).sum(-1)

    def _acted(self, obs: Tensor, mask: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The means over the batch of the actor's log-probability, and of what its actions are worth to the critics."""
        first, second = self._distribution(obs, mask, noise)
        continuous, numbers = self.design.action.kind == "continuous", range(self.critics.count)
        told = torch.stack(self._told(self.values, numbers, obs, first if continuous else None))
        worth = told.mean(0) if len(told) > 2 else told.amin(0)
        if continuous:
            return second.mean(), worth.mean()
        return (first * second).sum(-1).mean(), (first * worth.detach()).sum(-1).mean()

    def _move(self, which: str, loss: Tensor, counter: int | None) -> bool:
        """One step of an Adam, left out where loss or gradient is not finite."""
        adam = self._adams[which]
        parameters = adam.param_groups[0]["params"]
        grads = torch.autograd.grad(loss, parameters)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        self._squares = torch.stack([grad.square().sum() for grad in grads]).sum()
        if not bool(torch.isfinite(loss.detach() + self._squares)):
            return False
        if counter is not None:
            self.counters[counter] += 1
        adam.step()
        return True

    def temperature(self) -> float:
        """The weight of the entropy as it is learned."""
        return float(self.log_temperature.detach().exp())

    def products(self) -> float:
        """Unknown here."""
        return 0.0

    def gradient(self) -> Array:
        """The actor's flat gradient of the last step."""
        return self.design.weights.flatten({n: p.grad.numpy() for n, p in self.actor.items() if p.grad is not None})

    def activity(self) -> dict[str, Array]:
        """The mean size of each unit's output on the last batch, by hidden layer of the actor."""
        return self._activity

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        trained = self.actor | self.values
        arrays = {f"weight/{name}": array.copy() for name, array in _arrays(trained).items()}
        arrays |= {f"target/{name}": array.copy() for name, array in _arrays(self.targets).items()}
        for kind in MOMENTS:
            arrays |= {f"{kind}/{name}": self._moment(tensor, kind).numpy().copy() for name, tensor in trained.items()}
        scalars = [self.log_temperature.detach(), *(self._moment(self.log_temperature, kind) for kind in MOMENTS)]
        return arrays | {"temperature": torch.cat(scalars).numpy(), "counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        self.counters[:] = arrays["counters"]
        trained = self.actor | self.values
        with torch.no_grad():
            for name, tensor in trained.items():
                tensor.copy_(torch.from_numpy(arrays[f"weight/{name}"]))
                for kind in MOMENTS:
                    self._moment(tensor, kind).copy_(torch.from_numpy(arrays[f"{kind}/{name}"]))
            for name, array in strip_prefix(arrays, "target/").items():
                self.targets[name].copy_(torch.from_numpy(array))
            for tensor, value in zip(
                [self.log_temperature, *(self._moment(self.log_temperature, kind) for kind in MOMENTS)],
                arrays["temperature"].tolist(),
                strict=True,
            ):
                tensor.fill_(value)
        for name, adam in self._adams.items():
            for state in adam.state.values():
                state["step"].fill_(float(self.counters[0 if name == "critics" else 3]))
        self.design.weights.flatten(_arrays(self.actor), self.params)

    def _moment(self, tensor: Tensor, kind: str) -> Tensor:
        for adam in self._adams.values():
            if tensor in adam.state:
                moment: Tensor = adam.state[tensor][MOMENTS[kind]]
                return moment
        raise KeyError(kind)


def _leaves(named: Mapping[str, Array]) -> Named:
    return {name: torch.from_numpy(array.copy()).requires_grad_() for name, array in named.items()}


def _arrays(named: Mapping[str, Tensor]) -> dict[str, Array]:
    return {name: tensor.detach().numpy() for name, tensor in named.items()}


def _adam(tensors: Iterable[Tensor]) -> torch.optim.Adam:
    parameters = list(tensors)
    adam = torch.optim.Adam(parameters, eps=ADAM_EPS)
    for parameter in parameters:
        zeros = {key: torch.zeros_like(parameter, requires_grad=False) for key in MOMENTS.values()}
        adam.state[parameter] = {"step": torch.zeros(()), **zeros}
    return adam
