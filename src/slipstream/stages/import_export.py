"""Bring other people's demonstrations in, and send ours out: from and to the formats that others use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from slipstream.demos.exporters.arrays import export_npz
from slipstream.demos.exporters.minari import export_minari
from slipstream.demos.exporters.minerl import export_minerl
from slipstream.demos.importers.arrays import npz_source, trajectories_source
from slipstream.demos.importers.flat_tables import Bounds
from slipstream.demos.importers.hdf5 import hdf5_source
from slipstream.demos.importers.ingest import Source, ingest
from slipstream.demos.importers.minari import minari_data, minari_source
from slipstream.demos.importers.minerl import minerl_source
from slipstream.demos.importers.space_values import Space, SpaceRules
from slipstream.demos.importers.vpt import ADAPTER, vpt_source
from slipstream.demos.quality import LIMIT
from slipstream.demos.reader import Demos
from slipstream.envs.adapters import gymnasium
from slipstream.envs.adapters.action_spaces import action_spec
from slipstream.envs.adapters.observation_spaces import obs_encoder, obs_spec
from slipstream.errors import ConfigError, DemoError, did_you_mean
from slipstream.minecraft.action_maps import CameraBins
from slipstream.minecraft.frames import FrameAdapter

RULES = SpaceRules(obs_spec, obs_encoder, action_spec)
PICTURED = ("env", "actions", "size", "grey", "stack", "look", "margin", "camera")
TABLED = ("env", "sizes", "low", "high")
OPTIONS = {
    "minerl": PICTURED,
    "vpt": (*PICTURED, "drop_null"),
    "minari": ("env",),
    "npz": TABLED,
    "hdf5": TABLED,
}
"""What can be said about each format that is read."""
WRITERS: dict[str, Callable[[Demos, Path, Callable[[int, int], None] | None], dict[str, Any]]] = {
    "minari": export_minari,
    "npz": export_npz,
    "minerl": export_minerl,
}
Progress = Callable[[int, int], None]


def import_demos(
    form: str, place: str | Path, out: Path | str, *, workers: int | None = None, allow: float = LIMIT,
    max_samples: int | None = None, on_progress: Progress | None = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Import demonstrations from `place` into the demos folder `out`; `form` is a format's name, or `auto`.

    Options are those that `OPTIONS` lists for the format; None leaves one as it is.
    """
    place = str(place)
    form = detect(place) if form == "auto" else form
    if form not in OPTIONS:
        known = ["auto", *OPTIONS]
        raise ConfigError(
            f"Nothing reads the format `{form}`.{did_you_mean(form, known)}", f"formats: {', '.join(known)}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in OPTIONS[form]:
            flag = "--" + name.replace("_", "-")
            meant = ", ".join("--" + known.replace("_", "-") for known in OPTIONS[form])
            raise ConfigError(f"{flag} says nothing about {form}.", f"leave it out; {form} knows {meant}")
    if form != "minari" and not Path(place).exists():
        raise DemoError(f"There is nothing at {place}.", "name a file or folder that is there")
    source = _open(form, place, given)
    return ingest(source, Path(out), workers=workers, allow=allow, max_samples=max_samples, on_progress=on_progress)


def import_trajectories(
    trajectories: Sequence[Any], out: Path | str, *, env: str = "", sizes: Sequence[int] = (),
    low: Sequence[float] = (), high: Sequence[float] = (),
) -> dict[str, Any]:  # fmt: skip
    """Write trajectories that are in memory (`obs`, `acts`, `rews`, `terminal`, as `imitation` has them) as demos.

    With `env="gymnasium:NAME"` its spaces say what observations and actions are; else the data do.
    """
    source = trajectories_source(
        trajectories, env, RULES, spaces_of(env), Bounds(tuple(sizes), tuple(low), tuple(high))
    )
    return ingest(source, Path(out), allow=0.0)


def export_demos(form: str, folder: Path | str, out: Path | str, on_progress: Progress | None = None) -> dict[str, Any]:
    """Export a demos folder to `out`; episodes in quarantine are left out."""
    if form not in WRITERS:
        near = did_you_mean(form, WRITERS)
        raise ConfigError(f"Nothing writes the format `{form}`.{near}", f"formats: {', '.join(WRITERS)}")
    demos = Demos.open(folder)
    if not len(demos):
        raise DemoError(f"{folder} holds no good episode.", f"see why: slipstream demos check {folder}")
    return WRITERS[form](demos, Path(out), on_progress)


def detect(place: str) -> str:
    """The format of what is at `place`, told by its files."""
    path = Path(place)
    if path.is_file():
        known = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5", ".json": "vpt"}
        if path.suffix in known:
            return known[path.suffix]
    elif path.is_dir():
        for form, pattern in (("minerl", "rendered.npz"), ("vpt", "*.jsonl")):
            if next(path.rglob(pattern), None) is not None:
                return form
    try:
        minari_data(place)
    except DemoError:
        raise DemoError(
            f"What {place} holds cannot be told.", f"say it: slipstream demos import {'|'.join(OPTIONS)} {place} ..."
        ) from None
    return "minari"


def spaces_of(env: str) -> tuple[Space, Space] | None:
    """The spaces of a Gymnasium environment; None for any other."""
    kind, _, name = env.partition(":")
    if kind != "gymnasium":
        return None
    made = gymnasium.make(name, {})
    try:
        return made.observation_space, made.action_space
    finally:
        made.close()


def _open(form: str, place: str, given: Mapping[str, Any]) -> Source:
    """The source that the options ask for."""
    env = given.get("env", "")
    if form == "minari":
        return minari_source(place, RULES, env)
    if form in ("npz", "hdf5"):
        bounds = Bounds(*(tuple(given.get(name, ())) for name in ("sizes", "low", "high")))
        name = env or Path(place).stem
        opener = npz_source if form == "npz" else hdf5_source
        return opener(Path(place), name, RULES, spaces_of(env), bounds)
    common = {name: given[name] for name in ("env", "actions", "look", "margin", "drop_null") if name in given}
    if "camera" in given:
        common["bins"] = CameraBins(*given["camera"])
    usual = ADAPTER if form == "vpt" else FrameAdapter()
    adapter = FrameAdapter(
        given.get("size", usual.size), given.get("grey", False), given.get("stack", 1), how=usual.how
    )
    opener = vpt_source if form == "vpt" else minerl_source  # type: ignore[assignment]
    return opener(Path(place), adapter=adapter, **common)  # type: ignore[call-arg]
