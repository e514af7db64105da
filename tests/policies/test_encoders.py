"""Observation encoders: normalised vectors, scaled pixels, token sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from slipstream.contracts import ObsField, ObsSpec, vector_obs
from slipstream.policies.encoders import Encoder, ImageEncoder, TokenEncoder
from slipstream.settings import PolicySettings

EYE = ObsField("eye", "image", (12, 10, 3))
MAP = ObsField("map", "tokens", (6, 3))
SPEED = ObsField("speed", "vector", (4,))


def test_vectors_are_normalised_and_clipped() -> None:
    """(x - mean) * scale is clipped to 10 unless the scale is 1, and has no weights."""
    encoder = Encoder(vector_obs(2), PolicySettings())
    rows = torch.tensor([[3.0, 1.0], [1e6, -1e6]])
    out = encoder(rows, torch.tensor([1.0, 1.0]), torch.tensor([2.0, 0.5]))
    assert out.tolist() == [[4.0, 0.0], [10.0, -10.0]]
    plain = encoder(rows, torch.tensor([0.0, 0.0]), torch.tensor([1.0, 1.0]))
    assert torch.equal(plain, rows)
    assert not list(encoder.parameters()) and encoder.width == 2


def test_mixed_rows_are_read_field_by_field() -> None:
    """A byte row of vectors, image and tokens gives the vectors, then the features of each field."""
    obs = ObsSpec((SPEED, ObsField("more", "vector", (1,)), EYE, MAP))
    encoder = Encoder(obs, PolicySettings(features=8))
    random = np.random.default_rng(0)
    named = {
        "speed": random.normal(size=(5, 4)).astype(np.float32),
        "more": np.ones((5, 1), np.float32),
        "eye": random.integers(0, 256, (5, 12, 10, 3)),
        "map": random.integers(0, 256, (5, 6, 3)),
    }
    rows = obs.join(named)
    assert rows.dtype == np.uint8 and encoder.width == 4 + 1 + 8 + 8
    with torch.no_grad():
        out = encoder(torch.from_numpy(rows), torch.zeros(5), torch.ones(5)).numpy()
        eye, tokens = encoder.readers
        assert np.allclose(out[:, :5], np.concatenate([named["speed"], named["more"]], axis=1))
        assert np.allclose(out[:, 5:13], eye(torch.from_numpy(named["eye"].astype(np.uint8))).numpy(), atol=1e-6)
        assert np.allclose(out[:, 13:], tokens(torch.from_numpy(named["map"].astype(np.uint8))).numpy(), atol=1e-6)
        alone = encoder(torch.from_numpy(rows[2:3]), torch.zeros(5), torch.ones(5)).numpy()
    assert np.allclose(alone[0], out[2], atol=1e-6)


@pytest.mark.parametrize("kind", ["nature", "impala"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (3, 12, 12), (1, 35, 40), (4, 36, 36), (3, 84, 84)])
def test_images_of_any_size_are_read(kind: str, shape: tuple[int, int, int]) -> None:
    """Images from one pixel up give the requested features, and gradients reach the first layer."""
    reader = ImageEncoder(shape, kind, 16)  # type: ignore[arg-type]
    for bias in (p for name, p in reader.named_parameters() if name.endswith("bias")):
        torch.nn.init.constant_(bias, 0.1)
    pixels = torch.randint(0, 256, (3, *shape[1:], shape[0]), dtype=torch.uint8)
    features = reader(pixels)
    assert features.shape == (3, 16) and features.dtype == torch.float32
    features.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in reader.parameters())


def test_the_first_convolution_is_the_one_written_out() -> None:
    """Pixels are divided by 255 and convolved in height, width, channel order."""
    reader = ImageEncoder((2, 6, 5), "nature", 4)
    pixels = torch.randint(0, 256, (1, 6, 5, 2), dtype=torch.uint8)
    seen = []
    reader.stages[0].register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        reader(pixels)
        weight, bias = reader.stages[0][0].weight, reader.stages[0][0].bias  # type: ignore[index]
        patch = pixels[0, 2:6, 0:4].double() / 255  # the second row of patches: stride 2
        expected = torch.relu((patch.permute(2, 0, 1) * weight).sum((1, 2, 3)) + bias)
    assert torch.allclose(seen[0][0, :, 1, 0].double(), expected, atol=1e-5)


def test_large_images_go_through_the_convolutions_of_nature() -> None:
    """84 x 84 pixels give 64 maps of 7 x 7; images below 36 x 36 use smaller kernels."""
    assert ImageEncoder((4, 84, 84), "nature", 512).stages[-1][1].weight.shape == (512, 64 * 7 * 7)  # type: ignore[index]
    assert ImageEncoder((3, 12, 12), "nature", 32).stages[-1][1].weight.shape == (32, 64)  # type: ignore[index]
    assert ImageEncoder((3, 64, 64), "impala", 256).stages[-1][1].weight.shape == (256, 32 * 8 * 8)  # type: ignore[index]


def tokens_of(count: int, seed: int = 0) -> torch.Tensor:
    """Rows of present tokens."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, 256, (4, count, 3))
    tokens[..., 0] = random.integers(0, 255, (4, count))
    return torch.from_numpy(tokens.astype(np.uint8))


def test_the_order_of_tokens_has_no_effect() -> None:
    """Any order of tokens gives the same features."""
    reader, tokens = TokenEncoder(8), tokens_of(9)
    with torch.no_grad():
        assert torch.allclose(reader(tokens), reader(tokens[:, torch.randperm(9)]), atol=1e-6)


def test_absent_tokens_are_ignored() -> None:
    """Neither the bytes nor the number of absent tokens change the features."""
    reader, tokens = TokenEncoder(8), tokens_of(9)
    tokens[:, 5:, 0] = 255
    changed = tokens.clone()
    changed[:, 5:, 1:] = 77
    with torch.no_grad():
        features = reader(tokens)
        assert torch.equal(features, reader(changed))
        assert torch.allclose(features, reader(tokens[:, :5]), atol=1e-6)
        assert not torch.allclose(features, reader(tokens_of(5, seed=1)), atol=1e-3)


def test_rows_without_tokens_have_a_finite_gradient() -> None:
    """Without tokens the pooled encoding is zero, and the gradient is finite."""
    reader, tokens = TokenEncoder(8), tokens_of(9)
    tokens[:2, :, 0] = 255
    features = reader(tokens)
    expected = torch.relu(reader.stages[1][0].bias)  # type: ignore[index]
    assert torch.allclose(features[0], expected) and torch.allclose(features[1], expected)
    features.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in reader.parameters())
    reader.zero_grad()
    reader(tokens[:2]).sum().backward()
    assert not reader.each[0].weight.grad.any()  # type: ignore[union-attr]


def test_row_and_column_have_separate_embeddings() -> None:
    """The location byte holds 4-bit row and column, each with its own embedding."""
    reader, tokens = TokenEncoder(8), tokens_of(1)
    tokens[:, 0] = torch.tensor([0x21, 3, 4], dtype=torch.uint8)
    other = tokens.clone()
    other[:, 0, 0] = 0x12
    with torch.no_grad():
        assert not torch.allclose(reader(tokens), reader(other))
        reader.row.weight[2], reader.row.weight[1] = reader.row.weight[1].clone(), reader.row.weight[2].clone()
        swapped = reader(other)
        reader.row.weight[2], reader.row.weight[1] = reader.row.weight[1].clone(), reader.row.weight[2].clone()
        other[:, 0, 0] = 0x22
        assert torch.allclose(swapped, reader(other))


@pytest.mark.parametrize("kind", ["nature", "impala"])
@pytest.mark.parametrize("shape", [(4, 84, 84, 1), (84, 84, 4)])
def test_features_are_equal_with_and_without_gradients(kind: Any, shape: tuple[int, ...]) -> None:
    """The memory layout of images differs between acting and training; features agree up to rounding."""
    torch.manual_seed(0)
    field = ObsField("", "image", shape)
    reader, pixels = ImageEncoder(field.planes, kind, 32), torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    learned = reader(pixels)
    with torch.no_grad():
        acted = reader(pixels)
    assert torch.allclose(learned, acted, rtol=1e-4, atol=1e-5) and acted.std() > 0
    learned.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in reader.parameters())
