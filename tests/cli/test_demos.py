"""`slipstream demos`: what a folder holds, whether it is good, split, merged and drawn."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from slipstream.cli import main
from slipstream.contracts import ActionSpec, ObsField, ObsSpec, vector_obs
from slipstream.demos.format import TERMINATED, Schema
from slipstream.demos.reader import Demos
from slipstream.demos.writer import Shard, prepare

Cli = Callable[..., Result]
SCHEMA = Schema("toy", vector_obs(3), ActionSpec("multi_discrete", (4, 2)), ("goal",), agents=2)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call `slipstream demos` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(main, ["demos", *(str(word) for word in words)])


def write(
    name: str = "demos", games: int = 10, schema: Schema = SCHEMA, bad: tuple[int, ...] = (), seed: int = 0
) -> Path:
    """A recording of two workers; the rewards of bad games are NaN."""
    random, folder = np.random.default_rng(seed), Path(name)
    prepare(folder, schema)
    for worker in range(2):
        origin = {"recording": name, "agent": "scripted:chaser", "seed": seed, "worker": worker}
        shard = Shard(folder, f"{name}-{worker}", schema, origin)
        for game in range(worker, games, 2):
            for agent in range(schema.agents):
                values = {
                    column.name: random.integers(0, 2, (column.count(40), *column.shape)) for column in schema.columns
                }
                if game in bad:
                    values["reward"] = np.full(40, np.nan)
                facts = {"game": game, "env": game, "seed": seed, "agent": agent, "team": agent, "ended": TERMINATED}
                shard.add(values, outcome=1 - 2 * agent, **facts)
        shard.close()
    return folder


def facts(result: Result) -> dict[str, Any]:
    """The one JSON object, which is all that stands on stdout."""
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    loaded: dict[str, Any] = json.loads(line)
    return loaded


def error(result: Result, code: int = 4) -> str:
    """What is said when a command fails."""
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.stderr
    return result.stderr


def test_info(cli: Cli) -> None:
    """Who recorded it, how much there is, returns, lengths, outcomes and columns."""
    demos = Demos.open(write())
    told = facts(cli("info", "demos", "--json"))
    assert (told["env"], told["episodes"], told["games"], told["steps"]) == ("toy", 20, 10, 800)
    assert told["checksum"] == demos.checksum
    assert told["outcomes"] == {"won": 10, "drawn": 0, "lost": 10}
    assert told["returns"]["mean"] == pytest.approx(demos.episodes["return"].mean())
    assert told["bytes"] == sum(file.stat().st_size for file in Path("demos/shards").rglob("*.*"))
    assert {column["name"]: column["dtype"] for column in told["columns"]} == {
        "obs": "float32", "action": "int32", "reward": "float32", "terms/goal": "float32",
    }  # fmt: skip
    (recording,) = told["recordings"]
    assert recording["origin"]["agent"] == "scripted:chaser"
    assert (recording["shards"], recording["episodes"], recording["steps"]) == (2, 20, 800)
    lines = cli("info", "demos").stdout.splitlines()
    assert lines[0].startswith("demos: toy, 20 episodes, ")
    assert lines[1] == "games: 10, steps: 800"
    assert "outcomes: won 10, drawn 0, lost 10" in lines
    assert "actions: 4 x 2 options" in lines
    assert "  agent scripted:chaser, seed 0: 20 episodes, 2 shards" in lines
    assert lines[-1] == f"checksum: {demos.checksum}"


def test_info_of_one_game_and_of_none(cli: Cli) -> None:
    """Too little to sum up is said in words, not in NaN."""
    write("one", games=1, schema=replace(SCHEMA, agents=1))
    assert "nan" not in cli("info", "one").stdout
    prepare(Path("none"), replace(SCHEMA, action=ActionSpec("continuous", (), (-1.0,), (np.inf,))))
    text = cli("info", "none").stdout
    assert "it holds no good episode" in text
    assert "actions: [-1, inf]" in text
    assert facts(cli("info", "none", "--json"))["returns"]["mean"] is None


def test_no_demos_there(cli: Cli) -> None:
    """Every command says that there are no demos, why, and how to get some."""
    Path("folder").mkdir()
    for words in (["info"], ["check"], ["view"], ["split", "--out", "a", "b"], ["merge", "--out", "c"]):
        assert "No demos at nowhere: no such folder." in error(cli(words[0], "nowhere", *words[1:]))
        said = error(cli(words[0], "folder", *words[1:]))
        assert "No demos at folder: there is no demos.json in it." in said
        assert "hint: record some: slipstream record" in said
    prepare(Path("empty"), SCHEMA)
    assert "empty holds no whole episode" in error(cli("check", "empty"))
    for words in (["view"], ["split", "--out", "a", "b"], ["merge", "--out", "c"]):
        assert "empty holds no good episode" in error(cli(words[0], "empty", *words[1:]))


def test_check_good_demos(cli: Cli) -> None:
    """The report is on stdout, and nothing is written."""
    write()
    told = facts(cli("check", "demos", "--json"))
    assert (told["episodes"], told["good"], told["bad"], told["limit"]) == (20, 20, {}, 0.01)
    assert [part["reach"] for part in told["actions"]] == [0.5, 1.0]
    lines = cli("check", "demos").stdout.splitlines()
    assert lines[0] == "demos: 20 of 20 episodes are good"
    assert any(line.startswith("action 0: 2 of 4 options used (") for line in lines)
    assert not Path("demos/quarantine.json").exists()


def test_check_bad_demos(cli: Cli) -> None:
    """Too many bad episodes fail with exit code 4 after the report; allowed, they do not, then or later."""
    write(bad=(4,))
    result = cli("check", "demos")
    said = error(result)
    assert "2 of 20 episodes in demos are bad (10.00%); 1.00% may be." in said
    assert "  demos-0/4 has NaN or infinite values in `reward`" in said
    assert "slipstream demos check demos --allow 0.1" in said
    assert "bad: 2" in result.stdout
    assert "they are in demos/quarantine.json and are left out from now on" in result.stdout
    assert len(Demos.open("demos")) == 18
    told = facts(cli("check", "demos", "--allow", 0.1, "--json"))
    assert told["bad_share"] == 0.1 and told["limit"] == 0.1
    assert set(told["bad"]) == {"demos-0/4", "demos-0/5"}
    assert facts(cli("check", "demos", "--json"))["limit"] == 0.1
    assert "in quarantine: 2 episodes, which are left out" in cli("info", "demos").stdout
    error(cli("check", "demos", "--allow", 0.05))


def test_check_when_all_is_bad(cli: Cli) -> None:
    """Where no episode is good there is nothing to sum up, and that is said without NaN."""
    write(games=2, bad=(0, 1))
    result = cli("check", "demos", "--allow", 1)
    assert result.exit_code == 0
    assert result.stdout.startswith("demos: 0 of 4 episodes are good\nbad: 4\n")


def test_check_and_keep(cli: Cli) -> None:
    """A look alone changes nothing, and fails all the same."""
    write(bad=(4,))
    result = cli("check", "demos", "--keep", "--json")
    error(result)
    assert len(json.loads(result.stdout.splitlines()[-1])["bad"]) == 2
    assert not Path("demos/quarantine.json").exists()


def test_check_what_is_null(cli: Cli) -> None:
    """Which option does nothing is told by number, one for each part."""
    demos = Demos.open(write())
    told = facts(cli("check", "demos", "--null", "1,0", "--json"))
    assert told["null_share"] == (demos.load(["action"])["action"] == [1, 0]).all(axis=1).mean()
    assert "--null 7,0 is no action of these demos" in error(cli("check", "demos", "--null", "7,0"))
    assert "no list of numbers" in error(cli("check", "demos", "--null", "x"), 2)


def test_split(cli: Cli) -> None:
    """Games go to two new folders, of which the second has the share."""
    write()
    told = facts(cli("split", "demos", "--share", 0.3, "--seed", 4, "--out", "train", "held", "--json"))
    assert (told["train"]["games"], told["held_out"]["games"]) == (7, 3)
    assert (told["share"], told["seed"]) == (0.3, 4)
    games = [set(Demos.open(name).episodes["game"].tolist()) for name in ("train", "held")]
    assert games[0] | games[1] == set(range(10)) and not games[0] & games[1]
    assert "train is there already and is not empty" in error(cli("split", "demos", "--out", "train", "other"))
    assert not Path("other").exists()
    assert "A share of 2 cannot be held out" in error(cli("split", "demos", "--share", 2, "--out", "x", "y"), 2)
    result = cli("split", "demos", "--out", "x", "y")
    assert result.stdout.splitlines() == ["x: 18 episodes, 9 games, 720 steps", "y: 2 episodes, 1 game, 80 steps"]


def test_merge(cli: Cli) -> None:
    """Good episodes of several folders are put into one; other data is refused with the difference."""
    write("one", bad=(0,))
    error(cli("check", "one"))
    write("two", games=4, seed=1)
    told = facts(cli("merge", "one", "two", "--out", "both", "--json"))
    assert (told["episodes"], told["games"], told["from"]) == (26, 13, ["one", "two"])
    assert told["checksum"] == Demos.open("both").checksum
    write("other", schema=replace(SCHEMA, env="kart"))
    assert 'it holds demos with another `env`: "kart", not "toy"' in error(cli("merge", "one", "other", "--out", "x"))
    assert "one is named twice" in error(cli("merge", "one", "one", "--out", "x"))
    assert not Path("x").exists()
    assert cli("merge", "one", "--out", "alone").stdout == "alone: 18 episodes, 9 games, 720 steps\n"
    assert cli("merge", "--out", "x").exit_code == 2


def test_view(cli: Cli) -> None:
    """An episode is drawn by its number, from either end, or by its name, even in quarantine."""
    write(bad=(0,))
    error(cli("check", "demos"))
    told = facts(cli("view", "demos", "--json"))
    assert (told["picture"], told["kind"], told["episode"], told["steps"]) == ("demos-0.png", "plot", "demos-0/2", 40)
    with Image.open("demos-0.png") as picture:
        assert picture.format == "PNG" and picture.width == 1000
    assert facts(cli("view", "demos", "--episode", -1, "--out", "x.png", "--json"))["episode"] == "demos-1/9"
    told = facts(cli("view", "demos", "--episode", "demos-0/0", "--json"))
    assert told["picture"] == "demos-demos-0-0.png" and told["return"] is None
    assert cli("view", "demos", "--out", "y/z.png").stdout == "y/z.png: a plot of episode demos-0/2\n"


def test_view_images(cli: Cli) -> None:
    """Where an episode is seen in images a contact sheet is drawn."""
    schema = replace(SCHEMA, obs=ObsSpec((ObsField("eye", "image", (8, 8, 1)),)))
    write(schema=schema)
    assert facts(cli("view", "demos", "--json"))["kind"] == "sheet"


def test_episodes_that_are_not_there(cli: Cli) -> None:
    """The wrong number or name is named, with what there is."""
    write()
    said = error(cli("view", "demos", "--episode", 20))
    assert "demos has no episode 20." in said and "numbered 0 to 19" in said
    assert "demos has no episode demos-0/99." in error(cli("view", "demos", "--episode", "demos-0/99"))
    assert "`first` is no episode" in error(cli("view", "demos", "--episode", "first"), 2)
    assert list(Path().glob("*.png")) == []


def test_help(cli: Cli) -> None:
    """The verbs are listed, in the order in which they are used."""
    text = cli("--help").stdout
    places = [text.index(f"  {verb} ") for verb in ("info", "check", "split", "merge", "view")]
    assert places == sorted(places)
