"""MettaGrid worlds of one's own: files and Python functions train, resume, are evaluated and watched, safely."""

from __future__ import annotations

import importlib
import inspect
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import slipstream as ss
from slipstream.agents.specs import load_agent
from slipstream.cli import main
from slipstream.contracts import Array, Rows, Vector, empty_rows
from slipstream.envs.metta import own_worlds
from slipstream.envs.metta.own_worlds import TYPES
from slipstream.envs.metta.worlds import choose, configure_world, stage
from slipstream.envs.registry import EnvChoice, name_made, parse
from slipstream.errors import CheckpointError, ConfigError, EnvError
from slipstream.play.engine import ScheduledGame, play_scheduled
from slipstream.play.replay_recording import write_replay
from slipstream.runs.replays import Replay
from slipstream.settings import EnvSettings
from slipstream.system.rng import game_key
from slipstream.vector.make import make_vector

pytest.importorskip("mettagrid", reason='needs mettagrid (pip install "slipstream[mettagrid]")')

from mettagrid.config.mettagrid_config import MettaGridConfig
from mettagrid.config.obs_config import GlobalObsConfig
from mettagrid.envs.pettingzoo_env import MettaGridPettingZooEnv
from mettagrid.map_builder.ascii import AsciiMapBuilder
from mettagrid.map_builder.random_map import RandomMapBuilder
from mettagrid.simulator import Simulator

SMALL: dict[str, Any] = {"agents": 6, "size": 11, "altars": 5, "walls": 4, "steps": 30}


def configure(agents: int = 6, size: int = 11, steps: int = 30) -> MettaGridConfig:
    """An arena with a random map."""
    game = configure_world(choose("arena", SMALL | {"agents": agents, "size": size, "steps": steps}))
    objects = {"altar": size, "wall": 5}
    builder = RandomMapBuilder.Config(width=size, height=size, agents=agents, border_width=1, objects=objects)
    game.map_builder = builder
    return MettaGridConfig(label="my garden", game=game)


def write(path: Path, config: MettaGridConfig) -> str:
    """Write a configuration and return the name of its env."""
    path.write_text(yaml.safe_dump(config.model_dump(mode="json")), encoding="utf-8")
    return f"mettagrid:{path}"


def begin(choice: EnvChoice, envs: int = 2) -> tuple[Vector, Rows]:
    """Games that have just started."""
    vector = make_vector(choice, envs, seed=4)
    rows = empty_rows(vector.spec, envs)
    vector.reset(rows)
    return vector, rows


def play(vector: Vector, rows: Rows, steps: int) -> list[tuple[Array, ...]]:
    """What each step of random play brought."""
    rng, found = np.random.default_rng(0), []
    for _ in range(steps):
        vector.step(rng.integers(0, 5, (len(rows.reward), 1)).astype(np.int32), rows)
        names = ("obs", "reward", "truncated", "terminated", "final_obs")
        found.append(tuple(getattr(rows, name).copy() for name in names))
    return found


def same(one: list[tuple[Array, ...]], other: list[tuple[Array, ...]]) -> bool:
    """Whether two plays were the same bit for bit."""
    return all(np.array_equal(a, b) for x, y in zip(one, other, strict=True) for a, b in zip(x, y, strict=True))


def pettingzoo_env(config: MettaGridConfig | None = None) -> MettaGridPettingZooEnv:
    """MettaGrid's own PettingZoo env."""
    return MettaGridPettingZooEnv(Simulator(), config or configure())


def test_own_reward_terms() -> None:
    """A Python term sees each agent's tokens; the world's own reward is the term `env`."""
    agents: list[str] = []

    def shown(before: Any, action: Any, after: Any, info: Any) -> float:
        assert before.shape == after.shape and before.shape[1] == 3 and before.dtype == np.uint8
        agents.append(info["agent"])
        return 2.0

    vector, rows = begin(EnvChoice(name_made(pettingzoo_env()), factory=pettingzoo_env, terms={"shown": shown}), 1)
    play(vector, rows, 1)
    vector.close()
    assert vector.spec.terms == ("env", "shown") and len(set(agents)) == 6
    assert rows.terms[:, 1].tolist() == [2.0] * 6 and rows.reward == pytest.approx(rows.terms.sum(axis=1))


def test_it_equals_the_built_in_world() -> None:
    """A configuration equal to the built-in world, with the map of the same seed, plays bit for bit the same."""
    known, rows = begin(EnvChoice("mettagrid:arena", EnvSettings(options=SMALL)), 1)
    world = choose("arena", SMALL)
    cells = stage(world).grid(game_key(int(known.seeds()[0])))
    letters = {"wall": "#", "empty": ".", "altar": "a", "mine": "m"}
    drawn = [[letters.get(cell, "@") for cell in row] for row in cells]
    names = {"#": "wall", ".": "empty", "a": "altar", "@": "agent.agent"}

    def make() -> MettaGridConfig:
        game = configure_world(world)
        game.map_builder = AsciiMapBuilder.Config(map_data=drawn, char_to_map_name=names)
        return MettaGridConfig(game=game)

    own, others = begin(EnvChoice(name_made(make()), EnvSettings(options={"tokens": world.tokens}), factory=make), 1)
    assert own.seeds()[0] == known.seeds()[0]
    ids = [np.argsort(vector.view()["agents"][0, :, :2].tolist(), axis=0) for vector in (known, own)]  # type: ignore[attr-defined]
    assert np.array_equal(*ids) and np.array_equal(rows.obs, others.obs)
    assert same(play(known, rows, 29), play(own, others, 29))
    assert known.spec.meanings == own.spec.meanings


def test_a_file_and_functions_give_the_same_games(tmp_path: Path) -> None:
    """A file, a configuration and MettaGrid's PettingZoo env all use the fast simulator, with equal rows."""
    plays = []
    factories: list[Any] = [None, configure, pettingzoo_env]
    for factory in factories:
        name = name_made(factory()) if factory else write(tmp_path / "garden.yaml", configure())
        assert factory is None or name == "python:mettagrid/my-garden"
        vector, rows = begin(EnvChoice(name, factory=factory))
        assert type(vector).__name__ == "Metta" and vector.spec.exact and vector.spec.agents == 6
        assert vector.spec.obs.fields[0].kind == "tokens" and vector.spec.behaviours[:2] == ("heart", "ore")
        plays.append(play(vector, rows, 40))
    assert same(plays[0], plays[1]) and same(plays[0], plays[2])
    assert plays[0][29][2].all()


def test_the_slow_way_agrees() -> None:
    """The rows equal those of MettaGrid's PettingZoo env in the same map, behind the PettingZoo adapter."""

    class Own(MettaGridPettingZooEnv):  # type: ignore[misc]
        """A subclass may change anything, so it is stepped as a PettingZoo env."""

    config = configure()
    config.game.map_builder = AsciiMapBuilder.Config(
        map_data=["########", "#.@.a..#", "#a..@..#", "#.@@.@@#", "########"],
        char_to_map_name={"#": "wall", ".": "empty", "a": "altar", "@": "agent.agent"},
    )
    slow_name = name_made(Own(Simulator(), config))
    assert slow_name == "python:pettingzoo/Own"
    slow, rows = begin(EnvChoice(slow_name, factory=lambda: Own(Simulator(), config)), 1)
    fast, others = begin(EnvChoice("python:mettagrid/x", factory=lambda: config), 1)
    assert slow.spec.obs == fast.spec.obs and slow.spec.action == fast.spec.action
    slow.reset_envs([0], rows, [game_key(int(fast.seeds()[0])) & 0x7FFFFFFF])
    assert np.array_equal(rows.obs, others.obs)
    assert same(play(slow, rows, 29), play(fast, others, 29))


def most_seen(vector: Vector) -> int:
    """The largest number of tokens that an agent sees now."""
    return int((vector._tokens[..., 0] != 255).sum(axis=-1).max())  # type: ignore[attr-defined]


def test_two_hundred_agents_and_few_tokens() -> None:
    """Rows hold as many tokens as the configuration says, the nearest, however many the agents see."""

    def room(tokens: int) -> Any:
        config = MettaGridConfig.EmptyRoom(num_agents=200, width=40, height=40)
        config.game.max_steps, config.game.obs.num_tokens = 4, tokens
        return config

    plays = []
    for tokens, options in ((12, {}), (400, {"tokens": 12})):
        made = EnvChoice("python:mettagrid/x", EnvSettings(options=options), factory=lambda n=tokens: room(n))
        vector, rows = begin(made, 1)
        assert vector.spec.agents == 200 and vector.spec.obs.fields[0].shape == (12, 3)
        plays.append(play(vector, rows, 4))
        assert rows.behaviour[:, vector.spec.behaviours.index("cut")].mean() > 0.9
    assert same(*plays)


def test_more_tokens_than_the_buffer_has_space_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the core sees more tokens than were expected, the error names the setting, at the start and in a step."""
    config = configure(agents=12, size=21)
    made = EnvChoice("python:mettagrid/x", factory=lambda: config)
    at_start = most_seen(begin(made, 1)[0])
    monkeypatch.setattr(own_worlds, "most_tokens", lambda *_: 1)
    for tokens, step in ((at_start - 1, "step 0"), (at_start, r"step [1-9]\d?")):
        config.game.obs.num_tokens = tokens
        with pytest.raises(EnvError, match=rf"sees more than {tokens} tokens, .*env 0, seed \d+, {step}\)") as caught:
            play(*begin(made, 1), 29)
        assert "raise game.obs.num_tokens" in (caught.value.hint or "")


def test_the_largest_number_of_tokens() -> None:
    """A room full of agents that hold everything fits into the buffer."""
    config = MettaGridConfig.EmptyRoom(num_agents=144, width=14, height=14)
    game = config.game
    game.agent.inventory.initial = dict.fromkeys(game.resource_names, 300)
    game.obs.num_tokens, game.max_steps = 8, 9
    game.obs.global_obs = GlobalObsConfig(goal_obs=True, local_position=True, last_action_move=True)
    game.obs.aoe_mask = game.obs.territory = True
    vector, rows = begin(EnvChoice("python:mettagrid/x", factory=lambda: config), 1)
    play(vector, rows, 3)
    assert 2500 < most_seen(vector) <= vector._world.max_tokens < 6000  # type: ignore[attr-defined]


def test_a_threshold_ends_a_game() -> None:
    """`end_episode_on_game_stats` truncates a game early, and the next one starts."""
    config = configure()
    vector, rows = begin(EnvChoice("python:mettagrid/x", factory=lambda: config))
    play(vector, rows, 20)
    found = {name: value for name, value in vector._games[0].get_episode_stats()["game"].items() if value >= 1}  # type: ignore[attr-defined]
    config.game.end_episode_on_game_stats = {next(iter(found)): 1.0}
    vector, rows = begin(EnvChoice("python:mettagrid/x", factory=lambda: config), 1)
    ends = [step for step, one in enumerate(play(vector, rows, 29)) if one[2].all()]
    assert ends and ends[0] < 29 and not rows.terminated.any()


SCENES = "mettagrid.mapgen.scenes"
FILES = "candidates: [{scene_file: inner.yaml}]"
PAIRS = "compounds: !!pairs [hub: {children: [{scene: {type: evil.X}, where: full}]}]"


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghi")
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 9)}]}}\n" for before, name in pairwise("abcdefghij")
)
RANDOM = "type: mettagrid.map_builder.random_map.RandomMapBuilder.Config, width: 20, height: 20, border_width: 1"


def within(instance: str) -> str:
    """A file in which a scene is part of a generated map."""
    builder = f"{{type: mettagrid.mapgen.mapgen.MapGen.Config, width: 9, height: 9, instance: {instance}}}"
    return f"game: {{max_steps: 9, num_agents: 1, map_builder: {builder}}}"


def nested(builder: str) -> str:
    """A file in which a map builder is part of a generated map."""
    return (
        f"game: {{num_agents: 320, map_builder: {{type: mettagrid.mapgen.mapgen.MapGen.Config, instance: {builder}}}}}"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read: No such file"),
        ("[1, 2]", "holds a list"),
        ("a: [", "is not YAML"),
        ("game: {num_agent: 3}", r"game.num_agent: Extra inputs"),
        ("game: {max_steps: 0}", r"game.max_steps.* is 0"),
        ("game: {num_agents: 30, max_steps: 9}", "Number of agents 30 exceeds"),
        ("game: {map_builder: {type: os.path.Config}}", "names the type `os.path.Config`"),
        ("game: {map_builder: {type: evil.Builder.Config}}", "names the type `evil.Builder.Config`"),
        ("game: &a [*a]", "holds endlessly many values where its aliases"),
        ("a: " + 5000 * "[", "maximum recursion"),
        (BOMB, r"holds [\d,]+ values where its aliases .* more than 2,000,000"),
        (MERGED, r"holds [\d,]+ values where its aliases .* more than 2,000,000"),
        (f"game: {{num_agents: 500, map_builder: {{{RANDOM}, agents: 500}}}}", "500 agents .* the 324 free cells"),
        (nested(f"{{{RANDOM}, agents: {{red: 320}}, objects: {{a: 9, b: 9, c: 1, d: 1, e: 2}}}}"), "320 agents and 22"),
        (within("{type: mettagrid.mapgen.scenes.yaml.YamlScene.Config, file: inner.yaml}"), "scenes.yaml"),
        (within("{type: mettagrid.mapgen.scenes.ascii.Ascii.Config, uri: inner.yaml}"), "scenes.ascii"),
        (within(f"{{type: {SCENES}.random_yaml_scene.RandomYamlScene.Config, {FILES}}}"), "random_yaml_scene"),
        (within(f"{{type: {SCENES}.random_dcss_scene.RandomYamlScene.Config, {FILES}}}"), "random_dcss_scene"),
        (within(f"{{type: {SCENES}.random_dcss_scene.RandomDcssScene.Config, wfc: true, dcss: false}}"), "RandomDcss"),
        (within("{type: mettagrid.mapgen.scenes.nop.Nop.Config, children: [{scene: {type: evil.X}}]}"), "`evil.X`"),
        (within(f"{{type: {SCENES}.biome_arena.BiomeArena.Config, base_biome_config: {{type: evil.X}}}}"), "`evil.X`"),
        (within(f"{{type: {SCENES}.biome_arena.BiomeArena.Config, {PAIRS}}}"), "`evil.X`"),
        (within("{type: mettagrid.map_builder.map_builder.load_symbol}"), "load_symbol"),
        ("game: !!python/object/apply:os.system [touch hacked]", "is not YAML"),
    ],
)
def test_wrong_files(text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing, invalid or unsafe file is an error with the reason; nothing that it names is imported."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("open('hacked', 'w').close()", encoding="utf-8")
    Path("inner.yaml").write_text("type: evil.X", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    if text is not None:
        Path("own.yaml").write_text(text, encoding="utf-8")
    with pytest.raises((EnvError, ConfigError), match=said) as caught:
        make_vector(EnvChoice("mettagrid:own.yaml"), 1)
    assert caught.value.hint and "evil" not in sys.modules and not Path("hacked").exists()


def test_types_of_a_file() -> None:
    """Every type that a file may name exists, has no field for a file, and its module neither reads nor imports one."""
    routes = ["from_uri", "open(", "glob(", "YamlScene", "safe_load", "import_module", "load_symbol"]
    for name, (module, cls) in TYPES.items():
        inside = importlib.import_module(module)
        config, source = getattr(inside, cls).Config, inspect.getsource(inside)
        assert config._type_str() == name
        assert not {"uri", "file", "path", "scene_file", "parent"} & set(config.model_fields)
        assert cls == "MapGen" or not [one for one in routes if one in source]  # MapGen loads its `type`, checked here


def test_a_file_with_generated_maps(tmp_path: Path) -> None:
    """A map of nested scenes can be described in a file."""
    nested = f"{{type: {SCENES}.random.Random.Config, agents: 2, objects: {{wall: 3}}}}"
    text = within(f"{{type: {SCENES}.random_transform.RandomTransform.Config, scene: {nested}}}")
    path = tmp_path / "own.yaml"
    path.write_text(text.replace("num_agents: 1", "num_agents: 2, objects: {wall: {name: wall}}"), encoding="utf-8")
    vector, rows = begin(EnvChoice(f"mettagrid:{path}"))
    assert vector.spec.agents == 2 and len(play(vector, rows, 2)) == 2


def test_wrong_options_and_names(tmp_path: Path) -> None:
    """Options of the built-in worlds, a typing error, and a function that is missing or of another kind are errors."""
    name = write(tmp_path / "own.yaml", configure())
    with pytest.raises(ConfigError, match="altars"):
        make_vector(EnvChoice(name, EnvSettings(options={"altars": 3})), 1)
    with pytest.raises(ConfigError, match=r"env.options.tokens` = 4000 is more"):
        make_vector(EnvChoice(name, EnvSettings(options={"tokens": 4000})), 1)
    with pytest.raises(EnvError, match=r"no variant `arean`.*`arena`") as caught:
        parse("mettagrid:arean")
    assert "mettagrid:FILE.yaml" in (caught.value.hint or "")
    with pytest.raises(EnvError, match="was given as a Python function"):
        make_vector(EnvChoice("python:mettagrid/garden"), 1)
    with pytest.raises(EnvError, match="made a dict, which has no MettaGrid configuration"):
        make_vector(EnvChoice("python:mettagrid/garden", factory=dict), 1)
    with pytest.raises(ConfigError, match="walker"):
        load_agent("scripted:walker", make_vector(EnvChoice(name), 1).spec, EnvChoice(name))


TINY: dict[str, Any] = {
    "preset": "smoke",
    "plan__envs": 2,
    "plan__collector": "local",
    "ppo__rollout": 16,
    "ppo__minibatch": 96,
    "every__evaluate": 0,
    "every__replay": 384,
    "env__options": {"tokens": 32},
}


@pytest.mark.slow
@pytest.mark.parametrize(("agents", "size"), [(24, 21), (200, 40)])
def test_a_world_of_ones_own(agents: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with 24 or 200 agents trains, resumes, is evaluated, watched and drawn; a changed file does not resume."""
    monkeypatch.chdir(tmp_path)
    name = write(Path("own.yaml"), configure(agents, size, 20))
    small = TINY | {"ppo__minibatch": 16 * agents, "every__replay": 32 * agents}
    run = ss.train(name, steps=32 * agents, run=tmp_path / "run", **small)
    run = ss.resume(run.path, steps=64 * agents)
    assert run.facts["steps"] == 64 * agents
    told = ss.evaluate(f"run:{run.path}", name, games=2)
    assert told["games"] == 2 and "heart" in told["behaviour"]
    seen = ss.watch([f"run:{run.path}"], name)
    assert seen["games"] == 1 and seen["results"][0]["length"] == 20
    replay = sorted((run.path / "replays").glob("*.replay"))[-1]
    done = CliRunner().invoke(main, ["replay", str(replay), "--png", "own.png", "--verify"], catch_exceptions=False)
    assert done.exit_code == 0 and Path("own.png").stat().st_size > 5000
    write(Path("own.yaml"), configure(agents, size, 25))
    with pytest.raises(CheckpointError, match=r"`mettagrid:own.yaml` has changed since the run was started") as caught:
        ss.resume(run.path, steps=128 * agents)
    assert len(str(caught.value)) < 300 and "--start run:DIR" in (caught.value.hint or "")


@pytest.mark.slow
def test_a_function_of_ones_own(tmp_path: Path) -> None:
    """A function that makes MettaGrid's PettingZoo env trains, resumes bit for bit, is evaluated and watched."""
    small = TINY | {"every__replay": 0}
    ss.train(pettingzoo_env, steps=384, run=tmp_path / "whole", **small)
    run = ss.train(pettingzoo_env, steps=192, run=tmp_path / "parts", **small)
    with pytest.raises(ConfigError, match="was given as a Python function"):
        ss.resume(run.path, steps=384)
    run = ss.resume(run.path, steps=384, env=pettingzoo_env)
    ends = [ss.load_agent(f"run:{tmp_path / part}").params_and_stats for part in ("whole", "parts")]  # type: ignore[attr-defined]
    assert np.array_equal(*ends)
    assert ss.evaluate(f"run:{run.path}", pettingzoo_env, games=2)["games"] == 2
    assert ss.watch([f"run:{run.path}"], pettingzoo_env)["games"] == 1


def test_the_drawing(tmp_path: Path) -> None:
    """A replay draws walls, objects and agents in their places and colours, and agents slide between cells."""
    choice = EnvChoice("python:mettagrid/x", factory=configure)
    (game,) = play_scheduled(choice, load_agent, [ScheduledGame(("random",), 3)], keep_actions=True)
    path = tmp_path / "x.replay"
    write_replay(choice, game, path, kind="best", steps=0)
    replay = Replay.open(path)
    arrays = {name[4:]: replay.read(name) for name in replay.names if name.startswith("env/")}
    assert arrays["cells"].shape[1:] == (11, 11) and arrays["agents"].shape[1:] == (6, 3)
    assert (arrays["cells"][:, 0] == arrays["cells"][0, 0, 0]).all() and (arrays["clock"][:, 1] == 30).all()
    from slipstream.envs.metta.drawing import WALL, GridScene, own_colour

    scene = GridScene((480, 290), arrays, 0.0)
    assert scene.score(0) is None and scene.clock(3) == "step 3 of 30"
    picture = np.asarray(scene.paint(3.0))
    assert picture.shape == (290, 480, 3)
    cell, (left, top) = scene._cell, scene._corner
    row, column, _ = arrays["agents"][3, 0]
    x, y = round(left + (column + 0.5) * cell), round(top + (row + 0.5) * cell)
    assert np.abs(picture[y + round(cell * 0.2), x].astype(int) - own_colour(0)).max() < 12
    assert np.abs(picture[round(top + 0.5 * cell), round(left + 2.5 * cell)].astype(int) - WALL).max() < 12
    moved = next(t for t in range(29) if (arrays["agents"][t] != arrays["agents"][t + 1]).any())
    assert (np.asarray(scene.paint(moved)) != np.asarray(scene.paint(moved + 0.5))).any()
