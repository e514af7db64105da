"""Write the skeleton of a native game, and a test of it."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

from slipstream.envs import native
from slipstream.envs.registry import games
from slipstream.errors import ConfigError
from slipstream.runs.layout import write_text

SKELETON = Path(native.__file__).with_name("skeleton.py")
TEST = '''"""The game is the same compiled and as plain Python, and its scripted player is better than chance."""

import NAME
import slipstream as ss
from slipstream.testing import check_env


def test_compiled_equals_plain_python():
    assert check_env(NAME.game, 2_000) == []


def test_the_scripted_player_beats_chance():
    results = [ss.evaluate(agent, NAME.game, games=50) for agent in ("scripted:walker", "random")]
    assert results[0]["mean_return_low"] > results[1]["mean_return_high"]
'''


def write_game(name: str, folder: Path = Path()) -> list[Path]:
    """Write NAME.py and test_NAME.py into a folder; a file that exists is an error."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(f"A game cannot be called `{name}`.", "use lower-case letters, digits and _")
    if name in games():
        raise ConfigError(f"There is a game `{name}` already.", "choose another name")
    texts = {
        f"{name}.py": _skeleton(name),
        f"test_{name}.py": TEST.replace("NAME", name),
    }
    for file in texts:
        if (folder / file).exists():
            raise ConfigError(f"{folder / file} exists already.", "choose another name, or another folder")
    for file, text in texts.items():
        write_text(folder / file, text)
    return [folder / file for file in texts]


def _skeleton(name: str) -> str:
    """The text of a game of this name."""
    text = SKELETON.read_text(encoding="utf-8").replace('"""NAME:', f'"""{name}:').replace('"skeleton"', f'"{name}"')
    return text.replace("from slipstream.envs import native", "from slipstream import native")
