"""Weight conversion: no code is executed, keys are compared, and the network computes the same."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from slipstream.errors import CheckpointError, ConfigError
from slipstream.policies.convert_weights import (
    VptImageEncoder,
    VptShape,
    compare_keys,
    copy_matching,
    read_tensors,
    read_trunk,
    vpt_shape,
    write_trunk,
)
from slipstream.policies.pretrained import load_trunk

SMALL = VptShape(widths=(4, 6, 8), blocks=2, channels=3, side=16, dense=10, features=14)
IMAGES = "net.img_process."


def policy_file(shape: VptShape = SMALL, seed: int = 0) -> dict[str, Tensor]:
    """The state dict of a whole VPT policy with random weights."""
    generator = torch.Generator().manual_seed(seed)

    def some(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator) * 0.3

    made, inputs = {}, shape.channels
    for number, outputs in enumerate(shape.widths):
        stack = f"{IMAGES}cnn.stacks.{number}."
        made[f"{stack}firstconv.layer.weight"] = some(outputs, inputs, 3, 3)
        if number == 0:
            made[f"{stack}firstconv.layer.bias"] = some(outputs)
        else:
            made |= {f"{stack}firstconv.norm.{end}": some(inputs) for end in ("weight", "bias")}
        made |= {f"{stack}n.{end}": some(outputs) for end in ("weight", "bias")}
        for block in range(shape.blocks):
            for conv in range(2):
                unit = f"{stack}blocks.{block}.conv{conv}."
                made |= {f"{unit}norm.{end}": some(outputs) for end in ("weight", "bias")}
                made[f"{unit}layer.weight"] = some(outputs, outputs, 3, 3)
        inputs = outputs
    flat = inputs * (shape.side // 2 ** len(shape.widths)) ** 2
    for name, columns, rows in (("cnn.dense", flat, shape.dense), ("linear", shape.dense, shape.features)):
        made |= {f"{IMAGES}{name}.norm.{end}": some(columns) for end in ("weight", "bias")}
        made[f"{IMAGES}{name}.layer.weight"] = some(rows, columns)
    made["net.recurrent_layer.blocks.0.mlp0.layer.weight"] = some(4, 4)
    made["pi_head.camera.linear_layer.bias"] = some(121)
    made["value_head.normalizer.running_mean"] = some(1)
    return made


def forward(state: dict[str, Tensor], images: Tensor) -> Tensor:
    """The features that a policy file defines, computed in double precision."""
    state = {key.removeprefix(IMAGES): value.double() for key, value in state.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        axes = tuple(range(1, x.ndim))
        centred = x - x.mean(axes, keepdim=True)
        x = centred / (centred.square().mean(axes, keepdim=True) + 1e-5).sqrt()
        shape = (1, -1, 1, 1) if x.ndim == 4 else (1, -1)
        return x * state[f"{name}.weight"].view(shape) + state[f"{name}.bias"].view(shape)

    def conv(x: Tensor, name: str) -> Tensor:
        x = norm(x, f"{name}.norm") if f"{name}.norm.weight" in state else x
        bias = state.get(f"{name}.layer.bias")
        return functional.conv2d(x, state[f"{name}.layer.weight"], bias, padding=1).clamp(min=0)

    x = images.double().permute(0, 3, 1, 2) / 255
    number = 0
    while f"cnn.stacks.{number}.n.weight" in state:
        stack = f"cnn.stacks.{number}"
        x = functional.max_pool2d(conv(x, f"{stack}.firstconv"), 3, stride=2, padding=1)
        x = norm(x, f"{stack}.n")
        block = 0
        while f"{stack}.blocks.{block}.conv0.layer.weight" in state:
            x = x + conv(conv(x, f"{stack}.blocks.{block}.conv0"), f"{stack}.blocks.{block}.conv1")
            block += 1
        number += 1
    x = x.reshape(len(x), -1)
    for name in ("cnn.dense", "linear"):
        x = (norm(x, f"{name}.norm") @ state[f"{name}.layer.weight"].T).clamp(min=0)
    return x


def test_the_layout_is_that_of_the_published_models() -> None:
    """Keys and shapes are those of the smallest published model."""
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in VptImageEncoder(VptShape()).state_dict().items()}
    assert (
        shapes["cnn.stacks.0.firstconv.layer.weight"] == (64, 3, 3, 3)
        and "cnn.stacks.0.firstconv.norm.weight" not in shapes
    )
    assert shapes["cnn.stacks.0.firstconv.layer.bias"] == (64,) and "cnn.stacks.1.firstconv.layer.bias" not in shapes
    assert shapes["cnn.stacks.1.firstconv.norm.weight"] == (64,) and shapes["cnn.stacks.2.n.bias"] == (128,)
    assert shapes["cnn.stacks.2.blocks.1.conv1.layer.weight"] == (128, 128, 3, 3)
    assert shapes["cnn.dense.layer.weight"] == (256, 32768) and shapes["linear.layer.weight"] == (1024, 256)
    assert set(shapes) == {key.removeprefix(IMAGES) for key in policy_file() if key.startswith(IMAGES)}


@pytest.mark.parametrize("form", ["torch", "old torch", "safetensors"])
def test_a_policy_file_becomes_a_trunk(form: str, tmp_path: Path) -> None:
    """All image encoder keys match, the others are unused, and the trunk computes the file's features."""
    state, file = policy_file(), tmp_path / "small.weights"
    if form == "safetensors":
        save_file(state, file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=form == "torch")
    tensors = read_tensors(file)
    shape = vpt_shape(tensors)
    assert shape == SMALL
    report = compare_keys(shape, tensors)
    assert report.share == 1.0 and not report.missing and not report.mismatched
    assert set(report.matched) == {key for key in state if key.startswith(IMAGES)} and len(report.unused) == 3
    write_trunk(tmp_path / "trunk", shape, copy_matching(shape, tensors, report), {"file": file.name})
    again, kept = read_trunk(tmp_path / "trunk")
    assert again == SMALL and all(torch.equal(kept[key.removeprefix(IMAGES)], state[key]) for key in report.matched)
    trunk = load_trunk(str(tmp_path / "trunk"))
    images = torch.randint(0, 256, (5, 16, 16, 3), dtype=torch.uint8)
    expected = forward(state, images).numpy()
    assert trunk.features == 14 and trunk.size == (16, 16) and np.ptp(expected) > 0.1
    assert np.allclose(trunk.encode(images.numpy()), expected, rtol=2e-3, atol=2e-3)


def test_half_precision_weights_are_converted_to_single() -> None:
    """Weights of any float type are converted to single precision."""
    state = {key: value.half() for key, value in policy_file().items()}
    taken = copy_matching(SMALL, state, compare_keys(SMALL, state))
    assert {tensor.dtype for tensor in taken.values()} == {torch.float32}


def test_missing_and_mismatched_keys_are_named() -> None:
    """The report lists every key; missing weights are initialised deterministically."""
    state = policy_file()
    del state[f"{IMAGES}cnn.stacks.1.n.bias"]
    state[f"{IMAGES}linear.norm.weight"] = torch.zeros(3)
    state["net.something.else"] = torch.zeros(1)
    report = compare_keys(vpt_shape(state), state)
    assert report.missing == [f"{IMAGES}cnn.stacks.1.n.bias"]
    assert report.mismatched == [f"{IMAGES}linear.norm.weight: expected (10,), found (3,)"]
    assert "net.something.else" in report.unused and f"{IMAGES}linear.norm.weight" not in report.unused
    whole = len(report.matched) + 2
    assert report.share == pytest.approx((whole - 2) / whole)
    assert report.facts()["counts"] == {"matched": whole - 2, "missing": 1, "mismatched": 1, "unused": 4}
    assert report.words() == (
        f"{whole - 2} keys matched, 1 missing ({IMAGES}cnn.stacks.1.n.bias), "
        f"1 mismatched ({IMAGES}linear.norm.weight: expected (10,), found (3,)), 4 not used"
    )
    taken, again = (copy_matching(SMALL, state, report) for _ in range(2))
    assert not taken["cnn.stacks.1.n.bias"].any() and (taken["linear.norm.weight"] == 1).all()
    assert all(torch.equal(taken[key], again[key]) for key in taken)


def test_a_file_of_another_kind_matches_nothing() -> None:
    """With keys of another network everything is missing, and the message lists only some keys."""
    report = compare_keys(vpt_shape({}), {"encoder.weight": torch.zeros(2)})
    assert report.share == 0.0 and report.unused == ["encoder.weight"] and len(report.missing) > 40
    assert ", ...)" in report.words()


class Bomb:
    """An object whose pickle creates a folder when loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_malicious_file_is_not_executed(tmp_path: Path) -> None:
    """A pickle that executes code raises under any file name, and its code does not run."""
    mark = tmp_path / "mark"
    plain, zipped, model = (tmp_path / name for name in ("plain.weights", "zipped.weights", "foundation.model"))
    plain.write_bytes(pickle.dumps({"net.img_process.linear.layer.weight": Bomb(mark)}, protocol=2))
    torch.save({"a": torch.zeros(2), "b": Bomb(mark)}, zipped)
    model.write_bytes(pickle.dumps(Bomb(mark)))
    for file in (plain, zipped):
        with pytest.raises(CheckpointError, match=r"is not a file of tensors.*\nhint: .*never loaded"):
            read_tensors(file)
    with pytest.raises(CheckpointError, match=r"is a pickle of settings, which can execute code.*\nhint: .*\.weights"):
        read_tensors(model)
    assert not mark.exists()
    pickle.loads(plain.read_bytes())
    assert mark.is_dir()


def test_files_without_tensors_raise(tmp_path: Path) -> None:
    """A missing file, folder, archive, garbage, truncated file and other objects raise specific errors."""
    torch.save(policy_file(), tmp_path / "whole")
    save_file(policy_file(), tmp_path / "whole.safetensors")
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "whole", "whole")
    with tarfile.open(tmp_path / "packed.tar", "w") as archive:
        archive.add(tmp_path / "whole", "whole")
    (tmp_path / "garbage").write_bytes(os.urandom(1000))
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "half").write_bytes((tmp_path / "whole").read_bytes()[:3000])
    (tmp_path / "half.safetensors").write_bytes((tmp_path / "whole.safetensors").read_bytes()[:9000])
    torch.save({"a": 1}, tmp_path / "numbers")
    torch.save(torch.zeros(3), tmp_path / "bare")
    expected = {
        "nothing": "cannot be converted: no such file",
        ".": "cannot be converted: it is a folder",
        "packed.tar.gz": "is an archive",
        "packed.tar": "is an archive",
        "garbage": "not a file of tensors",
        "empty": "not a file of tensors",
        "half": "not a file of tensors",
        "half.safetensors": "not a file of tensors",
        "numbers": "something other than named tensors",
        "bare": "something other than named tensors",
    }
    for name, words in expected.items():
        with pytest.raises(CheckpointError, match=words):
            read_tensors(tmp_path / name)


def test_a_trunk_of_another_kind_raises(tmp_path: Path) -> None:
    """A folder of another version, or without weights, raises."""
    write_trunk(tmp_path, SMALL, VptImageEncoder(SMALL).state_dict(), {})
    text = (tmp_path / "trunk.json").read_text()
    (tmp_path / "trunk.json").write_text(text.replace("vpt-impala", "other"))
    with pytest.raises(ConfigError, match="is a trunk of the kind other, version 1"):
        read_trunk(tmp_path)
    (tmp_path / "trunk.json").write_text(text)
    (tmp_path / "trunk.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"cannot be read: .*\nhint: convert it again"):
        read_trunk(tmp_path)
