"""PPO's gradient steps in torch: the reference for the fused kernel, and the way for what it cannot do."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from slipstream.core.contracts import Array
from slipstream.learn.batch import Batch, Knobs, Outcome
from slipstream.models.kernels import OBS_LIMIT
from slipstream.models.reference import ActorCritic
from slipstream.models.shape import Shape

SUMS = 8


def ppo_loss(
    policy: ActorCritic, obs: Tensor, mask: Tensor | None, action: Tensor, old_logp: Tensor, old_value: Tensor,
    advantage: Tensor, goal: Tensor, knobs: Knobs,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the loss and, for the log, the sums of its parts: policy, value, entropy, kl, clipped, samples."""
    outputs, value = policy(obs)
    logp, entropy = policy.measure(outputs, action, mask)
    difference = logp - old_logp
    ratio = difference.exp()
    if knobs.normalise_advantage:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    held = ratio.clamp(1 - knobs.clip, 1 + knobs.clip)
    surrogate = torch.minimum(ratio * advantage, held * advantage)
    error = (value - goal).square()
    if knobs.clip_value > 0:
        near = old_value + (value - old_value).clamp(-knobs.clip_value, knobs.clip_value)
        error = torch.maximum(error, (near - goal).square())
    loss = -surrogate.mean() + knobs.value * error.mean() - knobs.entropy * entropy.mean()
    with torch.no_grad():
        parts = [-surrogate, error, entropy, ratio - 1 - difference, ((ratio - 1).abs() > knobs.clip).float()]
        sums = torch.stack([part.sum() for part in parts] + [torch.tensor(float(len(obs)))])
    return loss, sums


class TorchEngine:
    """A torch module and its fused Adam behind the same door as the fused kernel."""

    def __init__(self, shape: Shape, params: Array, threads: int) -> None:
        torch.set_num_threads(threads)
        self.shape = shape
        self.params = params
        self.policy = ActorCritic(shape)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), fused=True)
        self.counters = np.zeros(3, np.int64)
        self._stretch = torch.ones(())
        self._write_weights(shape.named(params))
        for parameter in self.policy.parameters():
            self.optimizer.state[parameter] = {
                "step": torch.zeros(()), "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }  # fmt: skip

    def run(self, batch: Batch, order: Array, knobs: Knobs) -> Outcome:
        """Take the gradient steps of one iteration on the samples in `order` [epochs, samples]."""
        for group in self.optimizer.param_groups:
            group.update(lr=knobs.learning_rate, eps=knobs.adam_eps)
        limit = float(OBS_LIMIT)
        obs = torch.from_numpy((batch.obs - batch.mean) * batch.scale).clamp(-limit, limit)
        columns = [batch.action, batch.logp, batch.value, batch.advantage, batch.goal]
        data = [torch.from_numpy(column) for column in columns]
        mask = torch.from_numpy(batch.mask) if batch.mask.shape[1] else None
        totals, longest, failed = torch.zeros(SUMS, dtype=torch.float64), *torch.zeros(2)
        streak = torch.tensor(float(self.counters[1]))
        for epoch in torch.from_numpy(order):
            before = totals.clone()
            for index in epoch.split(knobs.minibatch):
                action, logp, value, advantage, goal = (column[index] for column in data)
                allowed = mask[index] if mask is not None else None
                loss, sums = ppo_loss(self.policy, obs[index], allowed, action, logp, value, advantage, goal, knobs)
                bad, norm = self._step(loss, knobs)
                streak = (streak + 1) * bad
                longest, failed = torch.maximum(longest, streak), failed + bad
                totals += torch.where(bad > 0, torch.zeros(SUMS), torch.cat([sums, norm[None], torch.ones(1)]))
            kl, samples = (totals - before)[[3, 5]].tolist()
            if knobs.target_kl > 0 and samples > 0 and kl / samples > knobs.target_kl:
                break
        self.counters += np.array([int(totals[7]), 0, int(failed)])
        self.counters[1] = int(streak)
        self.shape.flatten(self._read_weights(), self.params)
        return Outcome.of(totals.numpy(), int(failed), diverged=bool(longest >= 3))

    def _step(self, loss: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
        """One optimiser step, left out on the device where the gradient is not finite."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), knobs.max_grad_norm)
        self._stretch = torch.clamp((norm + 1e-6) / knobs.max_grad_norm, min=1.0)
        bad = (~torch.isfinite(norm + loss.detach())).float()
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        return bad, norm

    def gradient(self) -> Array:
        """The flat gradient of the last step taken, as it was before it was shortened."""
        grads = {name: p.grad for name, p in self.policy.named_parameters() if p.grad is not None}
        return self.shape.flatten({name: (grad * self._stretch).numpy() for name, grad in grads.items()})

    def snapshot(self) -> dict[str, Array]:
        """Copies of all that training changes, by name."""
        arrays = {f"weight/{name}": array.copy() for name, array in self._read_weights().items()}
        for kind, key in (("first", "exp_avg"), ("second", "exp_avg_sq")):
            for name, parameter in self.policy.named_parameters():
                arrays[f"{kind}/{name}"] = self.optimizer.state[parameter][key].numpy().copy()
        return arrays | {"counters": self.counters.copy()}

    def restore(self, arrays: dict[str, Array]) -> None:
        """Put back what `snapshot` gave."""
        self.counters[:] = arrays["counters"]
        self._write_weights({name[7:]: array for name, array in arrays.items() if name.startswith("weight/")})
        for name, parameter in self.policy.named_parameters():
            state = self.optimizer.state[parameter]
            state["step"].fill_(float(self.counters[0]))
            state["exp_avg"].copy_(torch.from_numpy(arrays[f"first/{name}"]))
            state["exp_avg_sq"].copy_(torch.from_numpy(arrays[f"second/{name}"]))
        self.shape.flatten(self._read_weights(), self.params)

    def _read_weights(self) -> dict[str, Array]:
        return {name: parameter.detach().numpy() for name, parameter in self.policy.named_parameters()}

    def _write_weights(self, named: dict[str, Array]) -> None:
        with torch.no_grad():
            for name, parameter in self.policy.named_parameters():
                parameter.copy_(torch.from_numpy(named[name]))
