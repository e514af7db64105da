"""Notebooks: charts of metrics, the table of a run, and a display of one line that is updated."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from slipstream.api import Run
from slipstream.errors import ConfigError
from slipstream.runs import display as module
from slipstream.runs.display import Display, notebook_line
from slipstream.runs.figures import Figure
from slipstream.runs.notebook import facts_table, metrics_figure

ROWS: list[dict[str, Any]] = [
    {
        "steps": 10 * n,
        "episode/return_mean": n,
        "episode/return_low": n - 1,
        "episode/return_high": n + 1,
        "ppo/kl": 0.1,
    }
    for n in range(1, 20)
]
ROWS[4] |= {"evaluate/win_rate": 0.5, "evaluate/win_rate_low": 0.4, "evaluate/win_rate_high": 0.6, "text": "a"}


def titles(figure: Figure) -> list[str]:
    """The titles of a figure's panels."""
    return [panel.title for panel in figure.panels]


def test_a_figure_has_a_panel_per_metric_with_its_interval() -> None:
    """The metrics that are named are drawn in that order, with intervals, over the same steps."""
    figure = metrics_figure(ROWS, ("ppo/kl", "episode/return_mean"))
    assert titles(figure) == ["ppo/kl", "episode/return_mean"]
    assert figure.panels[1].lines[0].points[1] == (10.0, 1.0, 0.0, 2.0)
    assert figure.panels[0].lines[0].points[1] == (10.0, 0.1, None, None)
    ends = [[panel.lines[0].points[n][0] for n in (0, -1)] for panel in figure.panels]
    assert ends == [[10.0, 190.0]] * 2


def test_default_metrics_are_those_that_the_run_has() -> None:
    """Without names the return is drawn, and the evaluation if there was one."""
    assert titles(metrics_figure(ROWS)) == ["episode/return_mean", "evaluate/win_rate"]
    assert titles(metrics_figure([{"steps": 1, "clone/held_out_loss": 2.0}])) == ["clone/held_out_loss"]


def test_a_figure_shows_itself_and_saves(tmp_path: Path) -> None:
    """A notebook gets the same PNG that `save` writes; other file types are an error."""
    figure = metrics_figure(ROWS, (), "runs/mine")
    figure.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes() == figure._repr_png_()
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width == 1000 and len(set(picture.convert("L").tobytes())) > 10
    assert repr(figure) == "<Figure: episode/return_mean, evaluate/win_rate>"
    with pytest.raises(ConfigError, match=r"cannot be saved as `.*a.pdf`"):
        figure.save(tmp_path / "a.pdf")


def test_unknown_metrics_are_errors() -> None:
    """A wrong name suggests the nearest metric, and a run without metrics says so."""
    with pytest.raises(ConfigError, match=r"no metric `episode/return_meen`. Did you mean `episode/return_mean`"):
        metrics_figure(ROWS, ("episode/return_meen",))
    with pytest.raises(ConfigError, match="no metrics yet"):
        metrics_figure([])


def test_a_run_shows_a_table_and_plots(trained: Run) -> None:
    """A run has a table for notebooks with its path and results, and charts of its own metrics."""
    shown = trained._repr_html_()
    assert str(trained.path) in shown and f"{trained.facts['steps']:,}" in shown
    assert "ppo/kl" in titles(trained.plot("ppo/kl"))
    opened = Run.open(trained.path)
    assert opened.facts["steps"] == trained.facts["steps"] and repr(opened) == f"Run({str(trained.path)!r})"
    assert titles(opened.plot(["ppo/kl"])) == titles(trained.plot("ppo/kl"))


def test_the_table_is_escaped_and_says_why_a_run_stopped() -> None:
    """Names are text, not HTML."""
    shown = facts_table("<b>", {"steps": 5, "stopped": "Ctrl-C", "mean_return": None})
    assert "&lt;b&gt;" in shown and "Ctrl-C" in shown and "mean return" not in shown


def test_a_notebook_has_one_line_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views replace one another, at most every half second and at the end, without escape sequences."""
    lines: list[str] = []
    stream = io.StringIO()
    monkeypatch.setattr(module, "NOTEBOOK_EVERY_S", 60.0)
    with Display("train", stream=stream, notebook=lines.append) as display:
        display.message("a notice")
        for steps in (10, 20, 30):
            display.show({"steps": steps, "total_steps": 30})
    assert lines == ["steps 10/30", "steps 30/30"]
    assert stream.getvalue() == "a notice\n" and "\x1b" not in stream.getvalue()
    assert not display.live


def test_outside_a_notebook_there_is_no_notebook_line() -> None:
    """A plain Python process is no notebook."""
    assert notebook_line() is None
