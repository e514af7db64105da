"""Converts policies of Stable-Baselines3 to ours: the same function, in our settings, parameter names and normaliser.

Our networks represent MlpPolicy (PPO, A2C, MaskablePPO and SAC's actor) and MlpLstmPolicy exactly. What they cannot
represent is refused; nothing is approximated.

    SB3                                                      ours
    mlp_extractor.policy_net, action_net                     policy.layers, policy.head
    mlp_extractor.value_net, value_net                       value.layers, value.head
    lstm_actor, lstm_critic                                  policy.memory, value.memory (policy.memory_first)
    actor.latent_pi, actor.mu, actor.log_std                 policy.layers, policy.head (means, then log deviations)
    log_std                                                  log_std
    VecNormalize                                             mean and scale of the observation normaliser

SB3's Gaussian actions are in the env's units and clipped to the bounds; ours are in [-1, 1] and scaled to the bounds
afterwards, so the head and `log_std` are scaled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import nn

from slipstream.contracts import ActionSpec, Array, ObsSpec
from slipstream.errors import ConfigError
from slipstream.policies.design import Design
from slipstream.policies.linear_algebra import OBS_LIMIT
from slipstream.policies.sb3_model import SB3Model, VecNormalizeStats
from slipstream.settings import PolicySettings

ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu", nn.ELU: "elu"}
NEARLY_ONE = np.nextafter(np.float32(1), np.float32(0))
"""Used instead of a scale of exactly 1, which marks a number that is neither normalised nor clipped."""


class ConvertedPolicy(NamedTuple):
    """A policy in our format."""

    design: Design
    params_and_stats: Array
    learner: dict[str, Array]
    """Running statistics of observations and returns, by their names in a checkpoint."""


def convert_policy(model: SB3Model, obs: ObsSpec, action: ActionSpec) -> ConvertedPolicy:
    """Convert a policy for an environment with these spaces; raise for what ours cannot represent."""
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in model.policy.state_dict().items()}
    policy = model.policy.actor if model.algorithm == "sac" else model.policy
    _check(model, policy, obs)
    settings = _settings(model, policy)
    design = Design(obs, action, settings, value=model.algorithm != "sac")
    named = _sac_weights(weights, settings) if model.algorithm == "sac" else _ppo_weights(weights, settings)
    if model.algorithm != "sac":
        _fit_head(named, action)
    params_and_stats = np.zeros(design.params_and_stats_size, np.float32)
    params, mean, scale = design.split_params_and_stats(params_and_stats)
    design.weights.flatten({name: array.astype(np.float32) for name, array in named.items()}, params)
    scale[:] = 1.0
    learner: dict[str, Array] = {}
    if model.statistics is not None:
        learner = _write_statistics(model.statistics, obs, mean, scale)
    return ConvertedPolicy(design, params_and_stats, learner)


def _check(model: SB3Model, policy: Any, obs: ObsSpec) -> None:
    """Raise for settings of a policy that ours cannot represent."""
    arguments = model.arguments
    extractor = type(policy.features_extractor).__name__
    lstm_options = {name for name, value in (arguments.get("lstm_kwargs") or {}).items() if value}
    recurrent = model.algorithm == "recurrent_ppo"
    named = model.statistics is not None and set(model.statistics.mean) - {""}
    reasons = {
        f"`features_extractor_class` = {extractor}: only a flat vector can be converted": extractor
        != "FlattenExtractor"
        or not obs.plain
        or len(obs.fields) > 1,
        "`use_sde` = True: state-dependent exploration is not implemented here": getattr(policy, "use_sde", False),
        f"`activation_fn` = {_name(policy.activation_fn)}: use Tanh, ReLU or ELU": policy.activation_fn
        not in ACTIVATIONS,
        f"`lstm_kwargs` = {arguments.get('lstm_kwargs')}": recurrent and lstm_options,
        "`shared_lstm` = True with layers after it (`net_arch`)": recurrent
        and policy.shared_lstm
        and any(_widths(policy)),
        "`enable_critic_lstm` = False: a value function without the LSTM": recurrent
        and not policy.shared_lstm
        and policy.lstm_critic is None,
        "statistics of single observation keys (VecNormalize with norm_obs_keys)": named,
        f"`clip_obs` = {model.statistics.clip if model.statistics else 0:g} of VecNormalize: observations are clipped "
        f"to {OBS_LIMIT:g} here": model.statistics is not None
        and bool(model.statistics.mean)
        and model.statistics.clip != OBS_LIMIT,
    }
    why = next((why for why, applies in reasons.items() if applies), "")
    if not why and model.algorithm != "sac":
        actor, critic = _widths(policy)
        if actor != critic:
            why = f"`net_arch` has different layers for policy ({actor}) and value ({critic})"
    if why:
        raise ConfigError(
            f"{model.file} cannot be converted exactly: {why}.",
            f"play with it as it is (sb3:{model.file}), or clone its games: slipstream record, slipstream clone",
        )


def _settings(model: SB3Model, policy: Any) -> PolicySettings:
    """Our settings of the same networks."""
    activation = ACTIVATIONS[policy.activation_fn]
    if model.algorithm == "sac":
        return PolicySettings(hidden=tuple(policy.net_arch), activation=activation, shared=False, squash=True)
    more: dict[str, Any] = {}
    if model.algorithm == "recurrent_ppo":
        layers, _, units = policy.lstm_hidden_state_shape
        more = {"memory": "lstm", "memory_size": units, "memory_layers": layers, "memory_first": True}
    shared = model.algorithm == "recurrent_ppo" and policy.shared_lstm
    return PolicySettings(hidden=tuple(_widths(policy)[0]), activation=activation, shared=shared, **more)


def _widths(policy: Any) -> tuple[list[int], list[int]]:
    """The widths of the hidden layers of policy and value."""
    extractor = policy.mlp_extractor
    return tuple(  # type: ignore[return-value]
        [layer.out_features for layer in net if isinstance(layer, nn.Linear)]
        for net in (extractor.policy_net, extractor.value_net)
    )


def _ppo_weights(weights: dict[str, Array], settings: PolicySettings) -> dict[str, Array]:
    """The weights of policy and value network by our names."""
    named: dict[str, Array] = {}
    if settings.shared:  # one LSTM without hidden layers, and a head for both
        heads = [weights["action_net.weight"], weights["value_net.weight"]]
        biases = [weights["action_net.bias"], weights["value_net.bias"]]
        named |= {"trunk.head.weight": np.concatenate(heads), "trunk.head.bias": np.concatenate(biases)}
        named |= _prefixed(weights, "lstm_actor.", "trunk.memory.")
    else:
        for net, source, head, lstm in (
            ("policy", "policy_net", "action_net", "lstm_actor"),
            ("value", "value_net", "value_net", "lstm_critic"),
        ):
            named |= _layers(weights, f"mlp_extractor.{source}.", f"{net}.layers.", len(settings.hidden))
            named |= _prefixed(weights, f"{head}.", f"{net}.head.") | _prefixed(weights, f"{lstm}.", f"{net}.memory.")
    if "log_std" in weights:
        named["log_std"] = weights["log_std"]
    return named


def _sac_weights(weights: dict[str, Array], settings: PolicySettings) -> dict[str, Array]:
    """The weights of SAC's actor by our names; the critics are not converted."""
    named = _layers(weights, "actor.latent_pi.", "policy.layers.", len(settings.hidden))
    for end in ("weight", "bias"):
        named[f"policy.head.{end}"] = np.concatenate([weights[f"actor.mu.{end}"], weights[f"actor.log_std.{end}"]])
    return named


def _layers(weights: dict[str, Array], source: str, target: str, count: int) -> dict[str, Array]:
    """The layers of a Sequential of linear layers and activations in turn."""
    return {f"{target}{n}.{end}": weights[f"{source}{2 * n}.{end}"] for n in range(count) for end in ("weight", "bias")}


def _prefixed(weights: dict[str, Array], source: str, target: str) -> dict[str, Array]:
    return {target + name[len(source) :]: array for name, array in weights.items() if name.startswith(source)}


def _fit_head(named: dict[str, Array], action: ActionSpec) -> None:
    """Change the rows of the policy's head to what our action distributions expect, in place."""
    net = "policy" if "policy.head.weight" in named else "trunk"
    for end in ("weight", "bias"):
        head = named[f"{net}.head.{end}"].astype(np.float64)
        outputs = len(head) - (1 if net == "trunk" else 0)
        policy, rest = head[:outputs], head[outputs:]
        if action.kind == "continuous":
            factor, offset = _to_unit(action)
            policy = policy * factor[:, None] if end == "weight" else policy * factor + offset
        elif any(action.binary) and outputs == sum(action.sizes):  # two logits of a switch become their difference
            policy = np.concatenate(_switch_rows(policy, action))
        named[f"{net}.head.{end}"] = np.concatenate([policy, rest])
    if action.kind == "continuous":
        named["log_std"] = named["log_std"] + np.log(_to_unit(action)[0])


def _to_unit(action: ActionSpec) -> tuple[Array, Array]:
    """Factor and offset that map [low, high] to [-1, 1]; SB3 has no actions without bounds."""
    low, high = np.array(action.low, np.float64), np.array(action.high, np.float64)
    return 2 / (high - low), -(high + low) / (high - low)


def _switch_rows(rows: Array, action: ActionSpec) -> list[Array]:
    found, at = [], 0
    for size, binary in zip(action.sizes, action.binary, strict=True):
        part = rows[at : at + size]
        found.append(part[1:] - part[:1] if binary else part)
        at += size
    return found


def _write_statistics(stats: VecNormalizeStats, obs: ObsSpec, mean: Array, scale: Array) -> dict[str, Array]:
    """Write VecNormalize's statistics into our normaliser; return them as running statistics."""
    learner: dict[str, Array] = {}
    if "" in stats.mean:
        variance = stats.variance[""].reshape(-1).astype(np.float64) + stats.epsilon
        if variance.size != obs.floats:
            raise ConfigError(
                f"{stats.file} has statistics of {variance.size} numbers, but the observation has {obs.floats}.",
                "remove it, or put the statistics of this model in its place",
            )
        mean[:] = stats.mean[""].reshape(-1)
        scale[:] = 1.0 / np.sqrt(variance)
        scale[scale == 1] = NEARLY_ONE
        learner |= {
            "obs.count": np.full(1, stats.count),
            "obs.mean": stats.mean[""].reshape(-1).astype(np.float64),
            "obs.variance": variance,
        }
    if stats.normalises_return:
        learner |= {
            "return.count": np.full(1, stats.return_count),
            "return.mean": np.full(1, stats.return_mean),
            "return.variance": np.full(1, stats.return_variance),
        }
    return learner


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))
