"""Explained variance, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from slipstream.algorithms.running_stats import explained_variance


def floats(*values: float) -> np.ndarray:
    """As rollouts hold them."""
    return np.array(values, np.float32)


def test_explained_variance_by_hand() -> None:
    """Targets 1, 3, 5 have variance 8/3, errors 1, 0, -1 have 2/3, whatever their mean: three quarters explained."""
    active = np.array([1, 1, 0, 1], np.uint8)
    value_target = floats(1, 3, 1000, 5)
    assert explained_variance(value_target, floats(0, 3, 7, 6), active) == pytest.approx(0.75)
    assert explained_variance(value_target, floats(10, 13, 7, 16), active) == pytest.approx(0.75)
    assert explained_variance(value_target, value_target, active) == 1.0


def test_constant_targets_or_no_active_samples() -> None:
    """Constant targets give NaN, and so does a rollout without active samples."""
    assert math.isnan(explained_variance(floats(2, 2), floats(1, 5), np.ones(2, np.uint8)))
    assert math.isnan(explained_variance(floats(1, 2), floats(1, 5), np.zeros(2, np.uint8)))
