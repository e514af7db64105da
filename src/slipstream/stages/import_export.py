"""Import demonstrations recorded by other tools, and export demos to their formats (see `demos.converters`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from slipstream.demos.converters import EXPORTERS, FORMATS, IMPORTERS, ImportRequest, detect
from slipstream.demos.importers.flat_tables import ActionBounds
from slipstream.demos.importers.ingest import ingest
from slipstream.demos.importers.space_values import Space, SpaceRules
from slipstream.demos.importers.trajectories import trajectories_source
from slipstream.demos.quality import LIMIT
from slipstream.demos.reader import Demos
from slipstream.envs.adapters import gymnasium
from slipstream.envs.adapters.action_spaces import action_spec
from slipstream.envs.adapters.observation_spaces import obs_encoder, obs_spec
from slipstream.errors import ConfigError, DemoError, did_you_mean

RULES = SpaceRules(obs_spec, obs_encoder, action_spec)
Progress = Callable[[int, int], None]


def import_demos(
    form: str,
    place: str | Path,
    out: Path | str,
    *,
    workers: int | None = None,
    allow: float = LIMIT,
    max_samples: int | None = None,
    on_progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Import demonstrations from `place` into the demos folder `out`; `form` is the name of a format, or `auto`.

    The options of each format are listed in `demos.converters.FORMATS`; None stands for the default.
    """
    location = str(place)
    name = detect(location) if form == "auto" else form
    if name not in IMPORTERS:
        known = ["auto", *IMPORTERS]
        raise ConfigError(
            f"There is no importer for the format `{name}`.{did_you_mean(name, known)}", f"formats: {', '.join(known)}"
        )
    chosen = FORMATS[name]
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if option not in chosen.options:
            raise ConfigError(
                f"{_flag(option)} does not apply to the format {name}.",
                f"{name} has the options {', '.join(map(_flag, chosen.options))}",
            )
    if not chosen.named and not Path(location).exists():
        raise DemoError(f"{location} does not exist.", "give an existing file or folder")
    assert chosen.open is not None
    source = chosen.open(ImportRequest(location, RULES, env_spaces, given))
    return ingest(source, Path(out), workers=workers, allow=allow, max_samples=max_samples, on_progress=on_progress)


def import_trajectories(
    trajectories: Sequence[Any],
    out: Path | str,
    *,
    env: str = "",
    sizes: Sequence[int] = (),
    low: Sequence[float] = (),
    high: Sequence[float] = (),
) -> dict[str, Any]:
    """Write trajectories in memory (`obs`, `acts`, `rews`, `terminal`, as in `imitation`) as demos.

    With `env="gymnasium:NAME"` the spaces of that environment are used; otherwise they are inferred from the data.
    """
    bounds = ActionBounds(tuple(sizes), tuple(low), tuple(high))
    source = trajectories_source(trajectories, env, RULES, env_spaces(env), bounds)
    return ingest(source, Path(out), allow=0.0)


def export_demos(form: str, folder: Path | str, out: Path | str, on_progress: Progress | None = None) -> dict[str, Any]:
    """Export a demos folder to `out`; episodes in quarantine are left out."""
    if form not in EXPORTERS:
        near = did_you_mean(form, EXPORTERS)
        raise ConfigError(f"There is no exporter for the format `{form}`.{near}", f"formats: {', '.join(EXPORTERS)}")
    demos = Demos.open(folder)
    if not len(demos):
        raise DemoError(f"{folder} holds no good episode.", f"see why: slipstream demos check {folder}")
    return EXPORTERS[form](demos, Path(out), on_progress)


def env_spaces(env: str) -> tuple[Space, Space] | None:
    """The observation and action space of a Gymnasium environment; None for any other."""
    kind, _, name = env.partition(":")
    if kind != "gymnasium":
        return None
    made = gymnasium.make(name, {})
    try:
        return made.observation_space, made.action_space
    finally:
        made.close()


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
