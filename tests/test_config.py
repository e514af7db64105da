"""Layers of settings: who wins, who is remembered, and what is said when something is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.api import configure
from slipstream.config import (
    PRESETS,
    Layer,
    Resolved,
    dump,
    file_layer,
    flag_layer,
    preset_layer,
    preset_layers,
    presets,
    resolve,
)
from slipstream.errors import ConfigError


def origin(resolved: Resolved, key: str) -> tuple[Any, str]:
    """Value and origin of one setting, as `--show` prints them."""
    return next((value, where) for name, value, where in resolved.rows() if name == key)


def test_later_layers_win_and_are_remembered(tmp_path: Path) -> None:
    """Defaults < preset < file < flags, and every value knows where it came from."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("ppo: {epochs: 7, gamma: 0.5}\nseed: 3\n")
    resolved = resolve(preset_layer("smoke"), file_layer(mine), flag_layer(["ppo.epochs=9"]))
    assert origin(resolved, "ppo.epochs") == (9, "flag")
    assert origin(resolved, "ppo.gamma") == (0.5, "mine.yaml")
    assert origin(resolved, "seed") == (3, "mine.yaml")
    assert origin(resolved, "ppo.rollout") == (16, "preset smoke")
    assert origin(resolved, "ppo.gae_lambda") == (0.95, "default")


def test_the_game_brings_its_own_preset() -> None:
    """`soccer` starts from its preset, a Gymnasium env from the defaults."""
    assert origin(configure("soccer"), "ppo.rollout")[1] == "preset soccer"
    assert origin(configure("gymnasium:CartPole-v1"), "ppo.rollout")[1] == "default"


def test_steps_and_minutes_replace_each_other() -> None:
    """A flag for the one takes the other out of the preset, and both together stand."""
    assert configure("soccer", flags={"minutes": 2.0}).settings.steps is None
    assert configure("soccer", flags=["steps=5"]).settings.minutes is None
    both = configure("soccer", flags={"steps": 5, "minutes": 1}).settings
    assert (both.steps, both.minutes) == (5, 1.0)


def test_flags_are_read_as_yaml() -> None:
    """Numbers in any spelling, lists, words and null mean what they look like."""
    words = [
        "ppo.learning_rate=1e-3",
        "policy.hidden=[8, 4]",
        "policy.shared=false",
        "plan.envs=null",
        "opponent=random",
    ]
    settings = resolve(flag_layer(words)).settings
    assert settings.ppo.learning_rate == 1e-3
    assert settings.policy.hidden == (8, 4)
    assert settings.policy.shared is False
    assert settings.plan.envs is None
    assert settings.opponent == "random"


def test_python_keys_use_two_underscores() -> None:
    """`ppo__epochs=3` in Python is `ppo.epochs=3` on the command line, and so is a nested mapping."""
    assert resolve(flag_layer({"ppo__epochs": 3})).settings.ppo.epochs == 3
    assert resolve(flag_layer({"ppo": {"epochs": 3}})).settings.ppo.epochs == 3


def test_open_keys_are_merged_across_layers() -> None:
    """Reward weights and env options add up name by name, the later layer winning each name."""
    resolved = resolve(
        Layer("a.yaml", {"rewards.weights": {"goal": 1.0, "touch": 2.0}}),
        flag_layer(["rewards.weights.touch=0.5", "rewards.weights.boost=3", "env.options.render=false"]),
    )
    assert resolved.settings.rewards.weights == {"goal": 1.0, "touch": 0.5, "boost": 3.0}
    assert resolved.settings.env.options == {"render": False}
    assert resolve(Layer("a", {"rewards.weights": None})).settings.rewards.weights == {}
    files = Layer("a", {"rewards.weights": {"goal": 1, "touch": 2}}), Layer("b", {"rewards.weights": {"touch": 5}})
    assert resolve(*files).settings.rewards.weights == {"goal": 1, "touch": 5}


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            Layer("soccer.yaml", {"ppo.learnig_rate": 1}),
            "Unknown setting `ppo.learnig_rate` (soccer.yaml). Did you mean `ppo.learning_rate`?\n"
            "hint: `slipstream train ENV --show` lists all settings",
        ),
        (
            Layer("flag", {"zzz": 1}),
            "Unknown setting `zzz`.\nhint: `slipstream train ENV --show` lists all settings",
        ),
        (
            Layer("flag", {"ppo.epochs": 0}),
            "Setting `ppo.epochs` cannot be 0: input should be greater than or equal to 1.\n"
            "hint: `slipstream train ENV --show` lists all settings with their values",
        ),
        (
            Layer("my.yaml", {"policy.hidden": [64, "many"]}),
            "Setting `policy.hidden` (my.yaml) cannot be 'many': input should be a valid integer, unable to parse "
            "string as an integer.\nhint: `slipstream train ENV --show` lists all settings with their values",
        ),
        (
            Layer("flag", {"policy.activation": "gelu"}),
            "Setting `policy.activation` cannot be 'gelu': input should be 'tanh', 'relu' or 'elu'.\n"
            "hint: `slipstream train ENV --show` lists all settings with their values",
        ),
    ],
)
def test_mistakes_are_named(layer: Layer, message: str) -> None:
    """A wrong key or value is named with its place and the nearest right one; the exit code is 2."""
    with pytest.raises(ConfigError) as caught:
        resolve(layer)
    assert str(caught.value) == message
    assert caught.value.code == 2


def test_a_wrong_option_is_named_by_its_setting() -> None:
    """A value of an open key that cannot be used is named by the key on the settings page."""
    with pytest.raises(ConfigError, match=r"Setting `env.options` cannot be \[1\]"):
        resolve(flag_layer({"env.options": {"a": [1]}}))


def test_words_without_a_value_are_refused() -> None:
    """`--set` wants key=value, in readable YAML."""
    with pytest.raises(ConfigError) as caught:
        flag_layer(["ppo.epochs"])
    assert str(caught.value) == (
        "`ppo.epochs` is not of the form key=value.\nhint: for instance --set ppo.learning_rate=1e-3"
    )
    with pytest.raises(ConfigError, match=r"The value of `policy.hidden` cannot be read"):
        flag_layer(["policy.hidden=[1,"])


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    """A missing file, broken YAML and YAML that is not a mapping each say what they are."""
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError) as caught:
        file_layer(path)
    assert str(caught.value) == f"There is no config file `{path}`.\nhint: give an existing YAML file to --config"
    path.write_text("a: [1")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        file_layer(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        file_layer(path)
    path.write_text("- 1\n- 2\n")
    with pytest.raises(ConfigError, match="must hold settings by name, not a list"):
        file_layer(path)
    path.write_text("")
    assert file_layer(path).values == {}


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    """A tag that would build an object is refused: files hold names and numbers."""
    path = tmp_path / "evil.yaml"
    path.write_text("seed: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        file_layer(path)


def test_unknown_preset() -> None:
    """A preset that does not exist is answered with those that do."""
    with pytest.raises(ConfigError) as caught:
        preset_layer("smoky")
    assert str(caught.value) == (
        f"There is no preset `smoky`. Did you mean `smoke`?\nhint: use one of: {', '.join(presets())}"
    )


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid(name: str) -> None:
    """Every preset that ships can be used."""
    resolve(preset_layer(name))


def test_what_is_dumped_reads_back_equal(tmp_path: Path) -> None:
    """config.yaml holds every value, odd strings included, and its origin as a comment."""
    flags = {
        "ppo__learning_rate": 1e-5, "opponent": "run:a b@best", "env__options": {"name": "x # y", "on": True, "k": 1.5},
        "rewards__weights": {"goal": 2.0}, "policy__hidden": [], "minutes": 0.5, "plan__lag": 1,
    }  # fmt: skip
    resolved = configure("soccer", flags=flags)
    path = tmp_path / "config.yaml"
    path.write_text(dump(resolved, "soccer:2v2"))
    assert resolve(file_layer(path)).settings == resolved.settings
    lines = path.read_text().splitlines()
    assert "  learning_rate: 1.0e-05  # flag" in lines


OVERLAYS = ("quick", "low-memory", "many-cores", "gpu", "throughput")


def test_presets_lie_over_each_other() -> None:
    """Several presets, by commas or in a list, are laid over the game's own; the last one that sets a value wins."""
    assert [layer.origin for layer in preset_layers("quick, low-memory")] == ["preset quick", "preset low-memory"]
    assert preset_layers(["quick,low-memory", "gpu"]) == preset_layers("quick,low-memory,gpu")
    assert preset_layers(None) == preset_layers("") == preset_layers(()) == []
    both = configure("soccer", preset=("throughput", "low-memory"), tuned=False)
    assert origin(both, "plan.envs") == (64, "preset low-memory")
    assert origin(both, "ppo.epochs") == (1, "preset throughput")
    assert origin(both, "ppo.gamma") == (0.993, "preset soccer")
    with pytest.raises(ConfigError, match=r"There is no preset `quik`\. Did you mean `quick`\?"):
        configure("soccer", preset="throughput,quik")


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_preset_says_what_it_trades(name: str) -> None:
    """The head of the file says what it is for and what it costs; it sets nothing of a game."""
    text = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ") and "# It trades " in text
    assert not [key for key in preset_layer(name).values if key.startswith(("env.", "rewards.", "policy."))]


def test_presets_do_as_they_say() -> None:
    """Quick ends by the clock, low-memory holds less, many-cores overlaps, gpu and throughput take large batches."""
    plain = configure("soccer", tuned=False).settings
    quick, low, cores, gpu, most = (configure("soccer", preset=name, tuned=False).settings for name in OVERLAYS)
    assert (quick.steps, quick.minutes) == (None, 3.0)
    assert configure("soccer", preset="quick", flags={"steps": 9}, tuned=False).settings.minutes is None
    assert quick.ppo == plain.ppo and quick.policy == plain.policy and quick.plan == plain.plan
    assert (quick.evaluation.games, quick.league.steps) < (plain.evaluation.games, plain.league.steps)
    assert low.plan.envs < plain.plan.envs and low.clone.window_mib < plain.clone.window_mib
    assert (low.plan.collector, low.sac.buffer_size) == ("local", 100_000)
    assert (cores.plan.collector, cores.plan.lag) == ("actors", 1)
    assert gpu.plan.device == "cuda" and gpu.ppo.minibatch > plain.ppo.minibatch
    assert (most.ppo.epochs, most.plan.lag, most.every.evaluate) == (1, 1, 0)
