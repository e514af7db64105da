"""Layers of settings: precedence, origins, renamed keys and the errors for wrong keys and values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.api import configure
from slipstream.config import (
    KEYS,
    OPEN_KEYS,
    PRESETS,
    Layer,
    Resolved,
    dump,
    file_layer,
    flag_layer,
    flatten,
    preset_layer,
    preset_layers,
    presets,
    resolve,
)
from slipstream.errors import ConfigError
from slipstream.other_names import EQUIVALENTS, RENAMED, REPLACED
from slipstream.runs.layout import RunDir
from slipstream.runs.provenance import read_config
from slipstream.settings import Settings


def origin(resolved: Resolved, key: str) -> tuple[Any, str]:
    """Value and origin of one setting, as `--show` prints them."""
    return next((value, where) for name, value, where in resolved.rows() if name == key)


def test_later_layers_win_and_origins_are_kept(tmp_path: Path) -> None:
    """Precedence is defaults < preset < file < flags, and every value has an origin."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("ppo: {epochs: 7, gamma: 0.5}\nseed: 3\n")
    resolved = resolve(preset_layer("smoke"), file_layer(mine), flag_layer(["ppo.epochs=9"]))
    assert origin(resolved, "ppo.epochs") == (9, "flag")
    assert origin(resolved, "ppo.gamma") == (0.5, "mine.yaml")
    assert origin(resolved, "seed") == (3, "mine.yaml")
    assert origin(resolved, "ppo.rollout") == (16, "preset smoke")
    assert origin(resolved, "ppo.gae_lambda") == (0.95, "default")


def test_a_game_has_its_own_preset() -> None:
    """`soccer` starts from its preset, a Gymnasium env from the defaults."""
    assert origin(configure("soccer"), "ppo.rollout")[1] == "preset soccer"
    assert origin(configure("gymnasium:CartPole-v1"), "ppo.rollout")[1] == "default"


def test_steps_and_minutes_replace_each_other() -> None:
    """A flag for one removes the other of the preset; both flags together are kept."""
    assert configure("soccer", flags={"minutes": 2.0}).settings.steps is None
    assert configure("soccer", flags=["steps=5"]).settings.minutes is None
    both = configure("soccer", flags={"steps": 5, "minutes": 1}).settings
    assert (both.steps, both.minutes) == (5, 1.0)


def test_flags_are_read_as_yaml() -> None:
    """Numbers, lists, strings and null are parsed as YAML."""
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
    """Reward weights and env options are merged key by key; the later layer wins."""
    resolved = resolve(
        Layer("a.yaml", {"rewards.weights": {"goal": 1.0, "touch": 2.0}}),
        flag_layer(["rewards.weights.touch=0.5", "rewards.weights.boost=3", "env.options.render=false"]),
    )
    assert resolved.settings.rewards.weights == {"goal": 1.0, "touch": 0.5, "boost": 3.0}
    assert resolved.settings.env.options == {"render": False}
    assert resolve(Layer("a", {"rewards.weights": None})).settings.rewards.weights == {}
    files = Layer("a", {"rewards.weights": {"goal": 1, "touch": 2}}), Layer("b", {"rewards.weights": {"touch": 5}})
    assert resolve(*files).settings.rewards.weights == {"goal": 1, "touch": 5}


@pytest.mark.parametrize("key", OPEN_KEYS)
@pytest.mark.parametrize("value", [3, "a", [1], 0])
def test_open_keys_hold_values_by_name(key: str, value: Any) -> None:
    """A value that is not a mapping is an error that names key and value, with the form to write."""
    with pytest.raises(ConfigError) as caught:
        resolve(flag_layer([f"{key}={value}"]))
    assert caught.value.message.startswith(f"Setting `{key}` cannot be {value!r}: ")
    assert f"--set {key}.NAME=VALUE" in caught.value.hint


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            Layer("soccer.yaml", {"ppo.learnig_rate": 1}),
            "Unknown setting `ppo.learnig_rate` (soccer.yaml). Did you mean `ppo.learning_rate`?",
        ),
        (Layer("flag", {"zzz": 1}), "Unknown setting `zzz`."),
        (Layer("flag", {"ppo.epochs": 0}), "Setting `ppo.epochs` cannot be 0: input should be greater"),
        (Layer("my.yaml", {"policy.hidden": [64, "many"]}), "Setting `policy.hidden` (my.yaml) cannot be 'many': "),
        (Layer("flag", {"policy.activation": "gelu"}), "Setting `policy.activation` cannot be 'gelu': "),
    ],
)
def test_wrong_keys_and_values_are_errors(layer: Layer, message: str) -> None:
    """A wrong key or value is named with its origin and the nearest valid key; the exit code is 2."""
    with pytest.raises(ConfigError) as caught:
        resolve(layer)
    assert caught.value.message.startswith(message)
    assert "slipstream train ENV --show" in caught.value.hint
    assert caught.value.code == 2


def test_a_wrong_option_is_named_by_its_setting() -> None:
    """An invalid value inside a dictionary setting is reported under the key of the dictionary."""
    with pytest.raises(ConfigError, match=r"Setting `env.options` cannot be \[1\]"):
        resolve(flag_layer({"env.options": {"a": [1]}}))


def test_assignments_without_a_value_are_errors() -> None:
    """`--set` takes key=value, and the value must be valid YAML."""
    with pytest.raises(ConfigError, match=r"`ppo\.epochs` is not of the form key=value") as caught:
        flag_layer(["ppo.epochs"])
    assert "--set ppo.learning_rate=1e-3" in caught.value.hint
    with pytest.raises(ConfigError, match=r"`policy.hidden`"):
        flag_layer(["policy.hidden=[1,"])


def test_unreadable_files_are_errors(tmp_path: Path) -> None:
    """A missing file, broken YAML and YAML that is not a mapping each have their own error."""
    path = tmp_path / "mine.yaml"
    with pytest.raises(ConfigError, match="There is no config file") as caught:
        file_layer(path)
    assert str(path) in caught.value.message and "--config" in caught.value.hint
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
    """A YAML tag that would construct an object is an error."""
    path = tmp_path / "evil.yaml"
    path.write_text("seed: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        file_layer(path)


def test_unknown_preset() -> None:
    """The error for an unknown preset names the nearest one and lists all of them."""
    with pytest.raises(ConfigError, match=r"`smoky`\. Did you mean `smoke`\?") as caught:
        preset_layer("smoky")
    assert ", ".join(presets()) in caught.value.hint


@pytest.mark.parametrize("name", presets())
def test_presets_are_valid(name: str) -> None:
    """Every preset of the package resolves."""
    resolve(preset_layer(name))


def test_dumped_settings_read_back_equal(tmp_path: Path) -> None:
    """config.yaml holds every value, odd strings included, and its origin as a comment."""
    flags = {
        "ppo__learning_rate": 1e-5,
        "opponent": "run:a b@best",
        "env__options": {"name": "x # y", "on": True, "k": 1.5},
        "rewards__weights": {"goal": 2.0},
        "policy__hidden": [],
        "minutes": 0.5,
        "plan__lag": 1,
    }
    resolved = configure("soccer", flags=flags)
    path = tmp_path / "config.yaml"
    path.write_text(dump(resolved, "soccer:2v2"))
    assert resolve(file_layer(path)).settings == resolved.settings
    lines = path.read_text().splitlines()
    assert "  learning_rate: 1.0e-05  # flag" in lines


OVERLAYS = ("quick", "low-memory", "many-cores", "gpu", "throughput")


def test_presets_override_each_other() -> None:
    """Several presets, by commas or in a list, override the game's own preset; the last one that sets a value wins."""
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
def test_every_preset_states_its_trade_off(name: str) -> None:
    """The first comment of the file names purpose and cost; the preset sets nothing that belongs to a game."""
    text = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ") and "# It trades " in text
    assert not [key for key in preset_layer(name).values if key.startswith(("env.", "rewards.", "policy."))]


def test_presets_have_the_documented_effect() -> None:
    """quick stops by time, low-memory uses less memory, many-cores overlaps, gpu and throughput use large batches."""
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


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_key_names_the_new_one(old: str, new: str) -> None:
    """A key of version 0.1.0 is an error with the new key and the assignment to write."""
    assert new in KEYS and old not in KEYS
    with pytest.raises(ConfigError) as caught:
        resolve(flag_layer({old: 3}))
    assert f"`{old}` is now `{new}`" in caught.value.message and caught.value.hint == f"write {new}=3"


@pytest.mark.parametrize("old", REPLACED)
def test_an_old_schedule_names_the_new_one(old: str) -> None:
    """The keys that `schedules` replaced are errors, and the assignment in the hint is valid."""
    with pytest.raises(ConfigError, match=old) as caught:
        resolve(flag_layer({old: 5000}))
    assert resolve(flag_layer([caught.value.hint.removeprefix("write ")])).settings.schedules


def test_old_keys_in_schedules_name_the_new_ones() -> None:
    """A schedule of a renamed setting is an error too, in either spelling."""
    for layer in (
        flag_layer(["schedules.ppo.entropy=linear to 0"]),
        Layer("my.yaml", {"schedules": {"ppo.entropy": "linear to 0"}}),
    ):
        with pytest.raises(ConfigError, match=r"`schedules\.ppo\.entropy`.* is now `schedules\.ppo\.entropy_coef`"):
            resolve(layer)


def test_the_config_of_an_older_run_opens(tmp_path: Path) -> None:
    """The config.yaml of a run may have the keys of version 0.1.0; your own file may not."""
    changed = {
        key: value + 0.125 if isinstance(value, float) else value + 1
        for key, value in flatten(Settings())
        if key in RENAMED.values() and type(value) in (int, float)
    }
    changed |= {"ppo.shuffle": "time", "sac.critic_layer_norm": True, "rewards.half_life_s": 7.0}
    changed |= {"ppo.value_warmup_explained_variance": 0.5, "plan.activation_checkpointing": True}
    assert changed.keys() == set(RENAMED.values())
    lines = [f"{old}: {str(changed[new]).lower()}" for old, new in RENAMED.items()]
    (tmp_path / "config.yaml").write_text("\n".join([*lines, "schedules: {ppo.entropy: linear to 0}"]) + "\n")
    with pytest.raises(ConfigError, match="is now"):
        resolve(file_layer(tmp_path / "config.yaml"))
    (tmp_path / "provenance.json").write_text('{"env": "soccer"}')
    settings, env = read_config(RunDir(tmp_path))
    found = dict(flatten(settings))
    assert env == "soccer" and {key: found[key] for key in changed} == changed
    assert settings.schedules == {"ppo.entropy_coef": "linear to 0"}


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("n_steps", ["`ppo.rollout`"]),
        ("ppo.n_epochs", ["`ppo.epochs`"]),
        ("ent_coef", ["`ppo.entropy_coef`", "`sac.temperature`"]),
        ("num_minibatches", ["`ppo.minibatch`", "samples"]),
        ("num_env_runners", ["`plan.workers`"]),
        ("lambda_", ["`ppo.gae_lambda`"]),
        ("use_amp", ["`plan.precision=bf16`", "--set plan.precision=bf16"]),
        ("use-amp", ["`plan.precision=bf16`"]),
        ("use_sde", ["not implemented"]),
    ],
)
def test_a_name_of_another_library_names_the_equivalent(key: str, parts: list[str]) -> None:
    """The error of a key of SB3, CleanRL, RLlib or a common script names the equivalent setting."""
    with pytest.raises(ConfigError) as caught:
        resolve(flag_layer({key: 1}))
    assert f"Unknown setting `{key}`" in caught.value.message
    assert [part for part in parts if part not in str(caught.value)] == []


def test_a_section_chooses_among_equivalents() -> None:
    """`sac.ent_coef` names SAC's setting only."""
    with pytest.raises(ConfigError, match=r"sac\.temperature") as caught:
        resolve(flag_layer({"sac.ent_coef": 1}))
    assert "ppo." not in str(caught.value)


@pytest.mark.parametrize("row", EQUIVALENTS, ids=lambda row: f"{row.library}-{row.name}-{row.setting}")
def test_equivalents_exist(row: Any) -> None:
    """Every equivalent is a setting or a valid assignment, and none of the foreign names is a setting already."""
    key, equals, _ = row.setting.partition("=")
    assert row.name not in KEYS and (row.setting or row.note)
    if equals:
        resolve(flag_layer([row.setting]))
    elif key:
        assert key in (*KEYS, *OPEN_KEYS)
