"""Reads models of Stable-Baselines3: the policy of FILE.zip, and the VecNormalize statistics beside it.

Parts of these files are pickles, which can execute code when they are read, so nothing is read without the user's
permission (`--trust`). Of the zip only what acting needs is unpickled: the policy's class and arguments and the spaces.
Weights are read as plain tensors, and learning rate schedules or buffers not at all.

The statistics of `FILE.zip` are in the first of these files that exists:

    FILE_vecnormalize.pkl                    beside it
    NAME_vecnormalize_STEPS_steps.pkl        of NAME_STEPS_steps.zip, as CheckpointCallback writes them
    FILE/vecnormalize.pkl                    as RL Baselines3 Zoo writes them
    vecnormalize.pkl                         beside it
"""

from __future__ import annotations

import base64
import io
import json
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from slipstream.contracts import Array
from slipstream.errors import CheckpointError, ConfigError, first_line

SUPPORTED = "PPO, A2C, SAC, and RecurrentPPO and MaskablePPO of sb3-contrib"
UNPICKLED = ("policy_class", "policy_kwargs", "observation_space", "action_space")
PACKAGES = {"stable_baselines3": "stable-baselines3", "sb3_contrib": "sb3-contrib"}


@dataclass(frozen=True)
class VecNormalizeStats:
    """The observation and return statistics of a VecNormalize wrapper."""

    file: Path
    mean: dict[str, Array]
    """By observation key; a single observation has the key ""."""
    variance: dict[str, Array]
    count: float
    epsilon: float
    clip: float
    return_mean: float
    return_variance: float
    return_count: float
    normalises_return: bool

    def apply(self, obs: Any) -> Any:
        """Normalise a batch of observations as VecNormalize does."""
        if isinstance(obs, Mapping):
            return {key: self._apply(key, value) if key in self.mean else value for key, value in obs.items()}
        return self._apply("", obs) if "" in self.mean else obs

    def _apply(self, key: str, obs: Array) -> Array:
        scaled = (obs - self.mean[key]) / np.sqrt(self.variance[key] + self.epsilon)
        normalised: Array = np.clip(scaled, -self.clip, self.clip).astype(np.float32)
        return normalised


@dataclass(frozen=True)
class SB3Model:
    """A policy of Stable-Baselines3, ready to act on the CPU."""

    file: Path
    algorithm: str
    """ppo (also of A2C, MaskablePPO and TRPO), recurrent_ppo or sac."""
    policy: Any
    """A torch module: an ActorCriticPolicy, a RecurrentActorCriticPolicy or a SACPolicy."""
    steps: int
    """How many steps it was trained for."""
    gamma: float
    observation_space: Any
    action_space: Any
    arguments: dict[str, Any] = field(default_factory=dict)
    """The keyword arguments of the policy."""
    statistics: VecNormalizeStats | None = None

    @property
    def state_size(self) -> int:
        """Floats of a row's recurrent state: hidden and cell state of every LSTM layer of the actor."""
        if self.algorithm != "recurrent_ppo":
            return 0
        layers, _, units = self.policy.lstm_hidden_state_shape
        return 2 * int(layers) * int(units)


def read_model(file: Path, trust: bool) -> SB3Model:
    """Read FILE.zip and the statistics beside it; raise without `trust`."""
    _check_file(file)
    check_trust([file, *filter(None, [statistics_file(file)])], trust)
    data, weights = _read_zip(file)
    described = data["policy_class"] if isinstance(data.get("policy_class"), dict) else {}
    module = str(described.get("__module__", ""))
    _require("sb3_contrib" if module.startswith("sb3_contrib") else "stable_baselines3", file)
    _refuse_other_algorithms(module, file)
    found = {name: _unpickle(data, name, file) for name in UNPICKLED}
    arguments = {key: value for key, value in found["policy_kwargs"].items() if key != "device"}
    if data.get("use_sde"):
        arguments["use_sde"] = True
    try:
        policy = found["policy_class"](
            found["observation_space"], found["action_space"], lambda _: 0.0, **(arguments | _no_optimiser(arguments))
        )
        policy.load_state_dict(weights)
    except Exception as error:  # a foreign policy can raise anything
        raise CheckpointError(
            f"{file}: its policy {found['policy_class'].__name__} cannot be built: {first_line(error)}",
            "load it once with the version of Stable-Baselines3 that is installed here, and save it again",
        ) from error
    policy.set_training_mode(False)
    return SB3Model(
        file=file,
        algorithm=_algorithm(policy, file),
        policy=policy,
        steps=int(data.get("num_timesteps", 0)),
        gamma=float(data.get("gamma", 0.99)),
        observation_space=found["observation_space"],
        action_space=found["action_space"],
        arguments=arguments,
        statistics=read_statistics(file, trust),
    )


def check_trust(files: Sequence[Path], trust: bool) -> None:
    """Raise if the user has not allowed to open files that can execute code."""
    if not trust:
        names, many = " and ".join(map(str, files)), len(files) > 1
        raise ConfigError(
            f"{names} {'hold pickles' if many else 'holds pickles'}, which can execute code when they are opened; "
            "nothing was opened.",
            f"add --trust if you trust where {'they come' if many else 'it comes'} from (in Python: trust=True)",
        )


def statistics_file(file: Path) -> Path | None:
    """The file with the VecNormalize statistics of FILE.zip; None if there is none."""
    stem = file.with_suffix("") if file.suffix == ".zip" else file
    names = [stem.with_name(f"{stem.name}_vecnormalize.pkl")]
    if found := re.fullmatch(r"(.+)_(\d+)_steps", stem.name):
        names.append(stem.with_name(f"{found[1]}_vecnormalize_{found[2]}_steps.pkl"))
    names += [stem / "vecnormalize.pkl", stem.with_name("vecnormalize.pkl")]
    return next((name for name in names if name.is_file()), None)


def read_statistics(file: Path, trust: bool) -> VecNormalizeStats | None:
    """Read the VecNormalize statistics of FILE.zip; None if there are none or they leave observations unchanged."""
    place = statistics_file(file)
    if place is None:
        return None
    check_trust([place], trust)
    try:
        found = cloudpickle.loads(place.read_bytes())
    except Exception as error:  # a pickle can raise anything
        raise CheckpointError(
            f"{place} cannot be read: {first_line(error)}",
            "it is damaged, or needs another version of Stable-Baselines3; remove it to act without it",
        ) from error
    if type(found).__name__ != "VecNormalize":
        raise CheckpointError(
            f"{place} is a {type(found).__name__}, not the statistics of a VecNormalize.",
            "save it again: VecNormalize.save(FILE)",
        )
    by_key: dict[str, Any] = {}
    if found.norm_obs:
        by_key = found.obs_rms if isinstance(found.obs_rms, dict) else {"": found.obs_rms}
    return VecNormalizeStats(
        file=place,
        mean={key: np.asarray(one.mean) for key, one in by_key.items()},
        variance={key: np.asarray(one.var) for key, one in by_key.items()},
        count=float(next((one.count for one in by_key.values()), 0.0)),
        epsilon=float(found.epsilon),
        clip=float(found.clip_obs),
        return_mean=float(found.ret_rms.mean),
        return_variance=float(found.ret_rms.var),
        return_count=float(found.ret_rms.count),
        normalises_return=bool(found.norm_reward),
    )


def _check_file(file: Path) -> None:
    """Raise if there is no such file; it is not opened."""
    if not file.is_file():
        problem = "it is a folder" if file.is_dir() else "no such file"
        raise CheckpointError(f"{file} cannot be read: {problem}.", "give the .zip file that model.save wrote")


def _read_zip(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The JSON object of a model and the weights of its policy; nothing is unpickled here."""
    try:
        with zipfile.ZipFile(file) as archive:
            data = json.loads(archive.read("data"))
            tensors = io.BytesIO(archive.read("policy.pth"))
        weights = torch.load(tensors, map_location="cpu", weights_only=True)
    except Exception as error:  # a foreign file can raise anything
        raise CheckpointError(
            f"{file} is not a model of Stable-Baselines3: {first_line(error)}",
            "give the .zip file that model.save wrote",
        ) from error
    missing = [name for name in UNPICKLED if name not in data]
    if missing:
        raise CheckpointError(
            f"{file} is not a model of Stable-Baselines3: it has no `{missing[0]}`.",
            "give the .zip file that model.save wrote",
        )
    return data, weights


def _require(module: str, file: Path) -> None:
    """Raise if the package of a model's policy is missing."""
    try:
        __import__(module)
    except ImportError as error:
        package = PACKAGES[module]
        raise ConfigError(f"{file} needs the package {package}: {error}.", 'pip install "slipstream[sb3]"') from error


def _refuse_other_algorithms(module: str, file: Path) -> None:
    found = re.fullmatch(r"(?:stable_baselines3|sb3_contrib)\.(\w+)\.policies", module)
    if found and found[1] not in ("common", "sac"):
        raise CheckpointError(f"{file} is a model of {found[1].upper()}, which is not supported.", f"use {SUPPORTED}")


def _unpickle(data: Mapping[str, Any], name: str, file: Path) -> Any:
    """An entry of a model; what is not plain JSON is stored as a pickle."""
    entry = data[name]
    if not isinstance(entry, dict) or ":serialized:" not in entry:
        return entry
    try:
        return cloudpickle.loads(base64.b64decode(entry[":serialized:"]))
    except Exception as error:  # a pickle can raise anything
        raise CheckpointError(
            f"{file}: its `{name}` cannot be read: {first_line(error)}",
            "make the module that it needs importable (PYTHONPATH, or --import MODULE)",
        ) from error


def _no_optimiser(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that replace an optimiser of another package: acting needs none."""
    return {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {}} if "optimizer_class" in arguments else {}


def _algorithm(policy: Any, file: Path) -> str:
    if hasattr(policy, "lstm_actor"):
        return "recurrent_ppo"
    if hasattr(policy, "mlp_extractor") and hasattr(policy, "get_distribution"):
        return "ppo"
    if hasattr(getattr(policy, "actor", None), "get_action_dist_params"):
        return "sac"
    raise CheckpointError(f"{file} has the policy {type(policy).__name__}, which is not supported.", f"use {SUPPORTED}")
