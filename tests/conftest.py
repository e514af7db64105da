"""What several tests need: small runs, made in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slipstream.api import Run, train

SMALL: dict[str, Any] = {
    "preset": "smoke",
    "every__profile": 0,
    "every__evaluate": 0,
    "every__system": 0,
}


@pytest.fixture
def quick(tmp_path: Path) -> Callable[..., Run]:
    """Train a small policy for a few iterations into a fresh folder."""

    def make(env: Any = "soccer", name: str = "run", **settings: Any) -> Run:
        return train(env, run=tmp_path / name, **(SMALL | settings))

    return make
