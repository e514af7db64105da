"""Frozen trunks: offline loading, preprocessing, and features as the input of a trained head."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slipstream.agents.trained import policy_arrays
from slipstream.api import Run, resume
from slipstream.contracts import Array, ObsField, ObsSpec
from slipstream.engines.torch_engine import TorchEngine
from slipstream.errors import CheckpointError, ConfigError, MachineError
from slipstream.policies import pretrained
from slipstream.policies.convert_weights import VptImageEncoder, VptShape, write_trunk
from slipstream.policies.design import ActInputs, ActOutputs, Design
from slipstream.policies.fused_actor import make_actor
from slipstream.policies.pretrained import (
    CLIP_MEAN,
    CLIP_STD,
    from_head_params,
    head_design,
    load_trunk,
    to_head_params,
)
from slipstream.policies.torch_actor import TorchActor
from slipstream.runs.checkpoint import find, load
from slipstream.runs.layout import RunDir
from slipstream.settings import PolicySettings

SIDE, HIDDEN = 32, 16
SHAPE = VptShape(widths=(4, 6), blocks=1, channels=1, side=12, dense=12, features=20)
EYE = ObsField("eye", "image", (12, 12, 1))
IMAGE = ObsSpec((EYE,))
MIXED = ObsSpec((ObsField("speed", "vector", (3,)), ObsField("map", "tokens", (6, 3)), EYE))
FAST = ObsSpec((ObsField("speed", "vector", (3,)), EYE, ObsField("back", "image", (10, 14, 1))))
SEEN = {"image": IMAGE, "mixed": MIXED, "fast": FAST}


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny CLIP vision model with random weights."""
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("trunks") / "clip"
    CLIPVisionModel(tiny(CLIPVisionConfig)).save_pretrained(folder)
    return folder


def tiny(config: Any) -> Any:
    """The settings of a minimal CLIP model."""
    return config(
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=8,
    )


@pytest.fixture(scope="module")
def trunk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted trunk with random weights, which needs only torch."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("trunks") / "own"
    write_trunk(folder, SHAPE, VptImageEncoder(SHAPE).state_dict(), {})
    return folder


@pytest.fixture
def make_frozen(trunk: Path, make_policy: Callable[..., Any]) -> Callable[..., tuple[Design, Array]]:
    """A design with a frozen trunk, and random params_and_stats."""

    def make(kind: str, obs: ObsSpec, folder: Path = trunk, **more: Any) -> tuple[Design, Array]:
        plain, _ = make_policy(kind, hidden=(16,), image="frozen", trunk=str(folder), **more)
        design = Design(obs, plain.action, plain.policy)
        random, params_and_stats = np.random.default_rng(5), design.initial_params_and_stats(0)
        params, mean, scale = design.split_params_and_stats(params_and_stats)
        named = design.weights.named(params)
        design.weights.flatten(
            {name: array + random.normal(0, 0.1, array.shape) for name, array in named.items()}, params
        )
        mean[:], scale[:] = random.normal(0, 0.3, len(mean)), random.uniform(0.5, 1.5, len(scale))
        return design, params_and_stats

    return make


def pictures(count: int, shape: tuple[int, int, int], seed: int = 0) -> Array:
    """Images of noise."""
    return np.random.default_rng(seed).integers(0, 256, (count, *shape)).astype(np.uint8)


def pooled(folder: Path, images: Array, **more: Any) -> Array:
    """The CLIP model's own pooled output for images of its size."""
    from transformers import CLIPVisionModel

    model = CLIPVisionModel.from_pretrained(folder, local_files_only=True).eval()
    scaled = (images / 255.0 - np.array(CLIP_MEAN)) / np.array(CLIP_STD)
    with torch.no_grad():
        output = model(torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32), **more)
    result: Array = output.pooler_output.numpy()
    return result


def test_a_clip_folder_gives_the_models_pooled_output(clip: Path) -> None:
    """Features equal the model's to half precision, in batches or not, and no parameter is trainable."""
    found, images = load_trunk(str(clip)), pictures(70, (SIDE, SIDE, 3))
    features = found.encode(images)
    assert features.shape == (70, HIDDEN) == (70, found.features) and features.dtype == np.float32
    assert np.allclose(features, pooled(clip, images), atol=2e-3)
    assert np.array_equal(features, features.astype(np.float16).astype(np.float32))
    assert not any(parameter.requires_grad for parameter in found.net.parameters()) and not found.net.training
    assert found.encode(images[:0]).shape == (0, HIDDEN)


def test_a_whole_clip_model_is_read_for_its_vision_half(clip: Path, tmp_path: Path) -> None:
    """A folder with text and vision models gives the same features and hash, and prints nothing."""
    from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig, CLIPVisionModel

    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = tiny(CLIPVisionConfig).to_dict()
    whole = CLIPModel(CLIPConfig(text_config={**text, "vocab_size": 50}, vision_config=vision, projection_dim=8))
    part = CLIPVisionModel.from_pretrained(clip, local_files_only=True)
    own = {f"vision_model.{name}": value for name, value in part.state_dict().items()}
    whole.load_state_dict(own, strict=False)
    whole.save_pretrained(tmp_path / "whole")
    assert load_trunk(str(tmp_path / "whole")).hash == load_trunk(str(clip)).hash


def test_loading_has_no_side_effects(
    clip: Path, trunk: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed, and the global RNG is unchanged."""
    before = torch.get_rng_state()
    for number, folder in enumerate((clip, trunk)):
        shutil.copytree(folder, tmp_path / str(number))
        load_trunk(str(tmp_path / str(number)))
    assert torch.equal(torch.get_rng_state(), before)
    printed = capfd.readouterr()
    assert printed.out == printed.err == ""


@pytest.mark.parametrize("shape", [(20, 20, 3), (80, 64, 3)])
def test_other_sizes_are_resized_as_pillow_does(shape: tuple[int, int, int], clip: Path) -> None:
    """Images are resized by antialiased bicubic interpolation, within one level of Pillow's."""
    images = 96 + pictures(3, shape) // 4  # Pillow also cuts overshoots off between rows and columns
    ready = load_trunk(str(clip)).prepare(torch.from_numpy(images)).numpy().transpose(0, 2, 3, 1)
    levels = (ready * np.array(CLIP_STD) + np.array(CLIP_MEAN)) * 255
    for image, level in zip(images, levels, strict=True):
        expected = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.float64)
        assert np.abs(level - expected).max() < 1.01


def test_grey_images_and_channel_errors(clip: Path) -> None:
    """One channel is repeated for all three; other numbers raise with the field's name."""
    found, grey = load_trunk(str(clip)), pictures(2, (SIDE, SIDE, 1))
    assert np.array_equal(found.encode(grey), found.encode(np.repeat(grey, 3, axis=-1)))
    with pytest.raises(ConfigError, match=r"reads images of 3 channels, but `eye` has 4.*\nhint: use another trunk"):
        found.check(ObsField("eye", "image", (32, 32, 4)))


def test_a_size_may_be_requested(clip: Path) -> None:
    """NAME@PIXELS uses images of that size with interpolated position encodings."""
    images = pictures(3, (48, 48, 3))
    found = load_trunk(f"{clip}@48")
    assert found.size == (48, 48) and found.hash != load_trunk(str(clip)).hash
    assert np.allclose(found.encode(images), pooled(clip, images, interpolate_pos_encoding=True), atol=2e-3)
    with pytest.raises(ConfigError, match="patches of 8 pixels: images of 4 are too small"):
        load_trunk(f"{clip}@4")


def test_the_hash_covers_weights_and_preprocessing(clip: Path, tmp_path: Path) -> None:
    """A copy has the same hash; another weight or mean gives another without a restart."""
    from safetensors.torch import load_file, save_file

    copy = tmp_path / "copy"
    shutil.copytree(clip, copy)
    first = load_trunk(str(copy))
    assert first.hash == load_trunk(str(clip)).hash and load_trunk(str(copy)) is first
    (copy / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    second = load_trunk(str(copy)).hash
    tensors = load_file(copy / "model.safetensors")
    tensors["pre_layrnorm.bias"] = tensors["pre_layrnorm.bias"] + 1e-3
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    assert len({first.hash, second, load_trunk(str(copy)).hash}) == 3


def test_a_missing_trunk_raises_with_a_download_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name outside of the local cache raises with the download command, without network access."""

    def refuse(*_: Any) -> None:
        pytest.fail("something tried the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(ConfigError) as caught:
        load_trunk("nobody/no-such-model")
    assert "The trunk `nobody/no-such-model` is neither a folder nor a model" in caught.value.message
    assert "hf download nobody/no-such-model --local-dir DIR" in caught.value.hint
    assert "policy.trunk=DIR" in caught.value.hint
    with pytest.raises(ConfigError, match=r"`/no/such/folder/at/all` is neither a folder.*\nhint: "):
        load_trunk("/no/such/folder/at/all")


def test_a_cached_model_is_found_by_name(clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model in the local Hugging Face cache is found by name."""
    from huggingface_hub import constants

    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(clip, repository / "snapshots" / "abc")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert load_trunk("someone/tiny").hash == load_trunk(str(clip)).hash
    assert load_trunk("someone/tiny@48").size == (48, 48)


def test_without_the_library_the_extra_is_named(clip: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without transformers the error names the `vision` extra."""
    shutil.copytree(clip, tmp_path / "copy")

    def absent(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(pretrained, "import_module", absent)
    with pytest.raises(
        MachineError, match=r'transformers, which cannot be imported.*\nhint: pip install "slipstream\['
    ):
        load_trunk(str(tmp_path / "copy"))


def test_broken_folders_raise(clip: Path, trunk: Path, tmp_path: Path) -> None:
    """Empty folders, other models, missing weights, garbage and changed files raise specific errors."""
    from safetensors.torch import load_file, save_file

    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"neither config.json .* nor trunk.json"):
        load_trunk(str(tmp_path / "empty"))
    other = tmp_path / "other"
    shutil.copytree(clip, other)
    tensors = load_file(other / "model.safetensors")
    del tensors["pre_layrnorm.bias"]
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 of its weights, such as pre_layrnorm.bias"):
        load_trunk(str(other))
    (other / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(ConfigError, match=r"cannot be read: .*\nhint: download it again"):
        load_trunk(str(other))
    (other / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigError, match="a model of the type bert, not CLIP"):
        load_trunk(str(other))
    (other / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        load_trunk(str(other))
    own = tmp_path / "own"
    shutil.copytree(trunk, own)
    data = bytearray((own / "trunk.safetensors").read_bytes())
    data[-1] ^= 1
    (own / "trunk.safetensors").write_bytes(data)
    with pytest.raises(ConfigError, match=r"trunk.safetensors is damaged.*\nhint: convert it again"):
        load_trunk(str(own))
    with pytest.raises(ConfigError, match="reads images of one size only"):
        load_trunk(f"{trunk}@64")


def test_features_that_are_not_finite_raise(tmp_path: Path) -> None:
    """A trunk that outputs NaN raises."""
    state = VptImageEncoder(SHAPE).state_dict()
    state["linear.norm.bias"][0] = torch.nan
    write_trunk(tmp_path / "own", SHAPE, state, {})
    with pytest.raises(ConfigError, match="features that are not finite"):
        load_trunk(str(tmp_path / "own"))


def test_settings_must_agree() -> None:
    """A frozen image without a trunk, and a trunk without frozen images, raise with a hint."""
    obs = ObsSpec((ObsField("", "vector", (2,)),))
    with pytest.raises(ConfigError, match=r"`policy.image` = frozen needs `policy.trunk`.*\nhint: set policy.trunk"):
        Design(obs, None, PolicySettings(image="frozen"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"`policy.trunk` = x has no effect with `policy.image` = nature"):
        Design(obs, None, PolicySettings(trunk="x"))  # type: ignore[arg-type]


def seen_by_head(design: Design, obs: Array, trunk: Path) -> Array:
    """The observations with features in place of images, joined field by field."""
    named, found = design.obs.split(obs), load_trunk(str(trunk))
    images = [field.name for field in design.obs.fields if field.kind == "image"]
    return head_design(design).obs.join(named | {name: found.encode(named[name]) for name in images})


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(("kind", "memory"), [("masked_binary", "none"), ("squashed", "lstm")])
@pytest.mark.parametrize("shared", [True, False])
def test_a_head_on_features_is_the_policy_on_pixels(
    seen: str,
    kind: str,
    memory: str,
    shared: bool,
    trunk: Path,
    make_frozen: Callable[..., Any],
    make_samples: Callable[..., Any],
) -> None:
    """Outputs, values and actions are equal, including the normaliser; the kernels run pure vectors."""
    design, params_and_stats = make_frozen(kind, SEEN[seen], memory=memory, shared=shared)
    _, mean, _ = design.split_params_and_stats(params_and_stats)
    head = head_design(design)
    assert head.fused == (seen != "mixed") and not design.fused
    assert len(mean) == design.numbers == head.obs.floats == design.obs.floats + (40 if seen == "fast" else 20)
    head_params = to_head_params(design, params_and_stats)
    assert np.array_equal(from_head_params(design, head_params), params_and_stats)
    ours, theirs = policy_arrays(design, params_and_stats), policy_arrays(head, head_params)
    assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    obs, mask, _ = make_samples(design, 70)
    results = []
    for which, weights, rows in (
        (design, params_and_stats, obs),
        (head, head_params, seen_by_head(design, obs, trunk)),
    ):
        acting = make_actor(which)
        acting.load(weights)
        action, log_prob, value = np.zeros((70, which.action.parts), which.action.dtype), *np.zeros((2, 70), np.float32)
        states = np.zeros((70, which.state_size), np.float32)
        for _ in range(2):
            acting.act(
                ActInputs(np.arange(70), rows, mask, states, np.zeros((70, 2), np.int64)),
                ActOutputs(action, log_prob, value),
                False,
            )
        outputs = np.zeros((70, which.outputs), np.float32)
        acting.outputs(np.arange(70), rows, states, outputs)
        results.append((action, value, outputs))
    (action, value, outputs), (again, value_again, outputs_again) = results
    assert np.allclose(outputs, outputs_again, atol=1e-4) and np.allclose(value, value_again, atol=1e-4)
    assert np.allclose(action, again, atol=1e-4) and np.ptp(outputs, axis=0).min() > 1e-3


def test_initial_weights_are_those_of_the_head(make_frozen: Callable[..., Any]) -> None:
    """A run with a trunk starts from the initial weights of its head."""
    design, _ = make_frozen("continuous", FAST)
    assert np.array_equal(
        design.initial_params_and_stats(3), from_head_params(design, head_design(design).initial_params_and_stats(3))
    )


def test_the_trunk_is_not_among_the_weights(make_frozen: Callable[..., Any]) -> None:
    """Neither params_and_stats nor the optimiser contain the trunk, and training does not change it."""
    design, params_and_stats = make_frozen("discrete", IMAGE)
    names = [slot.name for slot in design.weights.slots]
    assert names == ["trunk.layers.0.weight", "trunk.layers.0.bias", "trunk.head.weight", "trunk.head.bias"]
    engine = TorchEngine(design, design.split_params_and_stats(params_and_stats)[0].copy(), 1)
    assert list(engine.optimiser.named) == names and list(TorchActor(design).policy.state_dict()) == names


def test_vector_statistics_do_not_change_feature_statistics(make_frozen: Callable[..., Any]) -> None:
    """PPO updates the statistics of vectors only; those of features stay."""
    design, params_and_stats = make_frozen("discrete", FAST)
    before = [part.copy() for part in design.split_params_and_stats(params_and_stats)[1:]]
    design.write_normaliser(params_and_stats, np.full(3, 7.0), np.full(3, 2.0))
    _, mean, scale = design.split_params_and_stats(params_and_stats)
    assert (mean[:3] == 7).all() and (scale[:3] == 2).all()
    assert np.array_equal(mean[3:], before[0][3:]) and np.array_equal(scale[3:], before[1][3:])


def test_a_description_names_its_trunk(trunk: Path, tmp_path: Path, make_frozen: Callable[..., Any]) -> None:
    """A policy is restored with its trunk; a missing or changed trunk raises a CheckpointError."""
    copy = tmp_path / "copy"
    shutil.copytree(trunk, copy)
    design, _ = make_frozen("discrete", IMAGE, copy)
    description = json.loads(json.dumps(design.describe()))
    assert description["trunk"] == {"name": str(copy), "hash": load_trunk(str(trunk)).hash, "features": 20}
    assert Design.read(description) == design
    shutil.rmtree(copy)
    with pytest.raises(CheckpointError) as caught:
        Design.read(description)
    assert f"the frozen trunk `{copy}`, which cannot be loaded: The trunk `{copy}` is neither" in str(caught.value)
    assert str(copy) in caught.value.hint
    policy, trunk_facts = description["policy"] | {"trunk": "a/b"}, description["trunk"] | {"name": "a/b"}
    away = description | {"policy": policy, "trunk": trunk_facts}
    with pytest.raises(CheckpointError, match=r"hf download a/b"):
        Design.read(away)
    write_trunk(copy, SHAPE, VptImageEncoder(SHAPE).state_dict(), {})
    with pytest.raises(CheckpointError, match=r"is not the one that this policy was trained with.*\nhint: "):
        Design.read(description)


SMALL: dict[str, Any] = {
    "policy__hidden": [16],
    "policy__features": 24,
    "steps": 256,
    "every__checkpoint": 0,
    "plan__threads": 1,
}


def outputs_twice(run: Run, frames: Array) -> tuple[Array, Array]:
    """The outputs of a run's agent, and those computed from its weights and the trunk's features."""
    agent = run.agent()
    outputs, rows = np.zeros((len(frames), 4), np.float32), agent.obs.encode(frames)
    agent.acting.outputs(np.arange(len(frames)), rows, agent.memory(len(frames)), outputs)
    checkpoint = load(find(RunDir.open(run.path)), groups=("policy",))
    named, name = checkpoint.groups["policy"], checkpoint.state["policy"]["policy"]["trunk"]
    features = load_trunk(name).encode(frames)
    hidden = np.tanh(features @ named["trunk.layers.0.weight"].T + named["trunk.layers.0.bias"])
    again: Array = (hidden @ named["trunk.head.weight"].T + named["trunk.head.bias"])[:, :4]
    assert np.array_equal(agent.act(frames), again.argmax(1)) and np.ptp(again, axis=0).max() > 1e-4
    return outputs, again


def test_a_policy_with_a_clip_trunk_is_trained_and_restored(clip: Path, quick: Callable[..., Run]) -> None:
    """PPO trains the head only, and the checkpoint's agent equals the head on the trunk's features."""
    before = load_trunk(str(clip)).hash
    run = quick("pixels", policy__image="frozen", policy__trunk=str(clip), **SMALL)
    first = Design.read(load(find(RunDir.open(run.path)), groups=("policy",)).state["policy"]).initial_params_and_stats(
        0
    )
    assert run.agent().params_and_stats.size == first.size and not np.array_equal(run.agent().params_and_stats, first)
    assert np.allclose(*outputs_twice(run, pictures(70, (12, 12, 1))), atol=1e-5)
    found = load_trunk(str(clip))
    facts = {key: getattr(found.net.model.config, key) for key in pretrained.CLIP_CONFIG_KEYS}
    description = {"kind": "clip", "size": found.size, "channels": 3, "mean": CLIP_MEAN, "deviation": CLIP_STD, **facts}
    assert found.hash == before == pretrained.digest(description, found.net.state_dict())


def test_a_run_resumes_exactly_in_any_processes(trunk: Path, quick: Callable[..., Run]) -> None:
    """Resumed or not, in one process or with two actors, the weights are equal."""
    more = {"policy__image": "frozen", "policy__trunk": str(trunk), "every__checkpoint": 128, **SMALL}
    whole = quick("pixels", "whole", **more).agent().params_and_stats
    half = quick("pixels", "half", **{**more, "steps": 128})
    assert np.array_equal(resume(half.path, steps=256).agent().params_and_stats, whole)
    wide = more | {"plan__envs": 128, "ppo__rollout": 2, "ppo__minibatch": 64, "steps": 512}
    actors = quick("pixels", "actors", plan__collector="actors", plan__workers=2, **wide)
    assert np.array_equal(actors.agent().params_and_stats, quick("pixels", "local", **wide).agent().params_and_stats)


def test_the_image_encoder_of_a_run_can_be_a_trunk(quick: Callable[..., Run]) -> None:
    """`run:DIR` uses that run's image encoder; runs without one raise."""
    base = quick("pixels", "base", policy__shared=False, **SMALL)
    found, frames = load_trunk(f"run:{base.path}"), pictures(5, (12, 12, 1))
    acting = base.agent().acting
    assert isinstance(acting, TorchActor)
    with torch.no_grad():
        expected = acting.policy.networks()[0].encoder.readers[0](torch.from_numpy(frames)).numpy()
    assert found.features == 24 and np.allclose(found.encode(frames), expected, atol=1e-3)
    assert load_trunk(f"run:{base.path}@256").hash == found.hash
    second = quick("pixels", "second", policy__image="frozen", policy__trunk=f"run:{base.path}", **SMALL)
    assert np.allclose(*outputs_twice(second, frames), atol=1e-5)
    with pytest.raises(ConfigError, match=r"uses a frozen trunk itself.*\nhint: write policy.trunk=run:"):
        load_trunk(f"run:{second.path}")
    with pytest.raises(CheckpointError, match="No run at nowhere"):
        load_trunk("run:nowhere")
    blind = quick("recall", "blind", **SMALL)
    with pytest.raises(ConfigError, match="its policy reads 0 images"):
        load_trunk(f"run:{blind.path}")
