"""A replay as a video: names, score and clock above, the game in the middle, values, rewards and events below."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from slipstream.contracts import Array, sides_of
from slipstream.envs.render.canvas import (
    DIM,
    INK,
    PAGE,
    PANEL,
    RULE,
    SIDES,
    WHITE,
    YELLOW,
    Brush,
    Colour,
    blended,
    faded,
    font,
    write_text,
)
from slipstream.envs.render.scenes import Scene, make_scene
from slipstream.errors import ConfigError
from slipstream.runs.replays import Event, Replay

HEADER, FOOTER = 50 / 540, 64 / 540
"""Shares of the height."""
PAUSE_S = 1.2
"""Seconds for which the video pauses at a goal and at the end."""
CAPTION_S = 1.4
"""Seconds for which a caption is shown."""
HIDDEN = "touch"
"""The kind of event that has neither a caption nor a mark on the time line, being too frequent."""
RANKS = ("goal", "lap", "save", "shot")
"""Kinds of events by importance; other kinds follow, then touches."""
CELLS = 6
"""Images on a contact sheet."""


@dataclass(frozen=True)
class FrameTime:
    """The time of one frame: a step and, during a pause, how far to extrapolate beyond it and what caused the pause."""

    step: float
    beyond: float = 0.0
    since: float = -1.0
    """Seconds since the pause began; negative while the game runs."""
    cause: Event | None = None
    """The goal that caused the pause; None at the end."""


class ReplayVideo:
    """Frames of a replay, one for any time."""

    def __init__(self, replay: Replay, size: tuple[int, int] = (960, 540)) -> None:
        facts = self.facts = replay.facts
        self.size = size
        self._head, self._foot = round(HEADER * size[1]), round(FOOTER * size[1])
        self._unit = size[1] / 540
        self._arrays = {name[4:]: replay.read(name) for name in replay.names if name.startswith("env/")}
        self.seconds = facts.step_seconds or 1 / 15
        self._scene = self.scene((size[0], size[1] - self._head - self._foot))
        self._goals = [event for event in facts.events if event.kind == "goal"]
        self._left, self._right = 62 * self._unit, size[0] - 24 * self._unit
        reward = replay.read("reward")
        value = replay.read("value") if "value" in replay.names else np.full_like(reward, np.nan)
        self._page = self._blank()
        self._bright, self._dull = (self._strips(value, reward, share) for share in (1.0, 0.35))

    def scene(self, size: tuple[int, int]) -> Scene:
        """The scene of the game alone, at the given size."""
        scene = make_scene(self.facts.env, size, self._arrays, self.seconds)
        if scene is None:
            raise ConfigError(
                f"`{self.facts.env}` has no drawing.", "leave the picture out: facts and events are printed"
            )
        return scene

    def side(self, event: Event) -> int:
        """The side of an event's agent."""
        return sides_of(self.facts.teams)[event.agent] if event.agent >= 0 else 0

    def moments(self, first: float, last: float, fps: float, speed: float) -> Iterator[FrameTime]:
        """The times of all frames from one step to another, with pauses at goals and at the end."""
        per, step, pause = speed / fps / self.seconds, first, max(1, round(PAUSE_S * fps))
        stops = [goal for goal in self._goals if first <= goal.step < last]
        while step < last:
            if stops and step >= stops[0].step + 1:
                goal = stops.pop(0)
                for k in range(pause):
                    yield FrameTime(goal.step + 0.999, k * per, k / fps, goal)
            yield FrameTime(step)
            step += per
        if last >= self.facts.length:
            cause = stops[0] if stops else None
            for k in range(pause):
                yield FrameTime(self.facts.length - 0.001, k * per, k / fps, cause)

    def frame(self, moment: FrameTime) -> Image.Image:
        """The whole frame at a time."""
        picture = self._page.copy()
        picture.paste(self._scene.paint(moment.step, moment.beyond), (0, self._head))
        self._paint_header(picture, moment)
        self._paint_footer(picture, moment)
        if moment.since >= 0:
            self._paint_banner(picture, moment)
        else:
            self._paint_caption(picture, moment)
        return picture

    def score(self, step: float) -> list[int]:
        """Goals of each side up to a step; empty for a game without goals."""
        if self.facts.score is None and not self._goals:
            return []
        score = [0] * len(set(self.facts.teams))
        for goal in self._goals:
            if step >= goal.step + 0.9:
                score[self.side(goal)] += 1
        return score

    def clock(self, step: float) -> str:
        """The text of the game clock."""
        return self._scene.clock(step)

    def _blank(self) -> Image.Image:
        """The parts that never change: names and frames."""
        width = self.size[0]
        page, unit = Image.new("RGB", self.size, PAGE), self._unit
        middle, space = self._head / 2, width / 2 - 110 * unit
        with Brush(page, (0, 0, width, self._head), 3) as brush:
            for side in range(len(self.facts.players)):
                x = 24 * unit if side == 0 else width - 34 * unit
                brush.box((x, middle - 9 * unit, x + 10 * unit, middle + 9 * unit), SIDES[side % 2], 3 * unit)
        for side, name in enumerate(self.facts.players[:2]):
            x, anchor = (44 * unit, "lm") if side == 0 else (width - 44 * unit, "rm")
            write_text(page, (x, middle), short_name(name), round(19 * unit), INK, anchor, width=space)
        return page

    def _paint_header(self, picture: Image.Image, moment: FrameTime) -> None:
        unit, middle, centre = self._unit, self._head / 2, self.size[0] / 2
        clock = self.clock(min(moment.step, self.facts.length - 1))
        if self._scene.score(0) is None:
            write_text(picture, (centre, middle), clock, round(26 * unit), INK, "mm")
            return
        for side, goals in enumerate(self.score(moment.step)):
            x = centre + (26 * unit if side else -26 * unit)
            write_text(picture, (x, middle - 5 * unit), f"{goals}", round(32 * unit), SIDES[side], "mm")
        write_text(picture, (centre, middle - 7 * unit), ":", round(24 * unit), DIM, "mm")
        write_text(picture, (centre, self._head - 7 * unit), clock, round(13 * unit), DIM, "mm")

    def _across(self, step: float) -> float:
        """The x coordinate of a step on the time line."""
        return self._left + (self._right - self._left) * min(step / self.facts.length, 1.0)

    def _strips(self, value: Array, reward: Array, share: float) -> Image.Image:
        """The footer: the lead by the agents' value estimates, rewards, and event marks on the time line."""
        unit, tall = self._unit, self._foot
        foot = Image.new("RGB", (self.size[0], tall), PAGE)
        sides = [np.array([team == side for team in self.facts.teams]) for side in sorted(set(self.facts.teams))]
        ahead = lead(value, sides)
        middle, reach = (17 * unit, 14 * unit) if ahead is not None else (0.0, 0.0)
        with Brush(foot, (0, 0, *foot.size), 2) as brush:
            if ahead is not None:
                self._draw_lead(brush, ahead, middle, reach, share)
            zero = 40 * unit if ahead is not None else 26 * unit
            self._draw_rewards(brush, reward, sides, zero, 8 * unit if ahead is not None else 20 * unit, share)
            line = tall - 9 * unit
            bar = (self._left, line - 1.5 * unit, self._right, line + 1.5 * unit)
            brush.box(bar, blended(PAGE, DIM, 0.2 + 0.5 * share), 1.5 * unit)
            for event in sorted(self.facts.events, key=lambda event: event.kind == "goal"):
                self._draw_mark(brush, event, line, share)
        size = round(11 * unit)
        if ahead is not None:
            write_text(foot, (self._left - 8 * unit, middle), "value", size, DIM, "rm")
        write_text(foot, (self._left - 8 * unit, zero), "reward", size, DIM, "rm")
        return foot

    def _draw_lead(self, brush: Brush, ahead: Array, middle: float, reach: float, share: float) -> None:
        """Draw the lead over time: blue upwards, orange downwards."""
        columns = np.linspace(0, len(ahead) - 1, max(2, int(self._right - self._left)))
        heights = np.interp(columns, np.arange(len(ahead)), ahead)
        across = np.linspace(self._left, self._right, len(columns))
        for side, sign in ((0, 1), (1, -1)):
            levels = middle - reach * np.maximum(0.0, sign * heights) * sign
            edge = list(zip(across.tolist(), levels.tolist(), strict=True))
            colour = blended(PAGE, SIDES[side], share)
            brush.polygon([(self._left, middle), *edge, (self._right, middle)], colour)
        brush.line([(self._left, middle), (self._right, middle)], RULE, 0.5)

    def _draw_rewards(
        self, brush: Brush, reward: Array, sides: list[Array], zero: float, reach: float, share: float
    ) -> None:
        """Draw the reward of each side as bars; the largest are clipped."""
        bars = max(2, int((self._right - self._left) / (3 * self._unit)))
        edges = np.linspace(0, len(reward), bars + 1).astype(int)
        sums = [np.add.reduceat(reward[:, rows].mean(axis=1), edges[:-1]) for rows in sides]
        sizes = np.abs(np.concatenate(sums))
        full = max(float(np.quantile(sizes[sizes > 0], 0.9)) if sizes.any() else 0.0, 1e-6)
        wide = (self._right - self._left) / bars
        for side, heights in enumerate(sums):
            colour = blended(PAGE, SIDES[side % 2], 0.85 * share)
            shift = side * wide / len(sums)
            for bar, height in enumerate(heights.tolist()):
                end = zero - reach * max(-1.0, min(1.0, height / full))
                left = self._left + bar * wide + shift
                brush.box((left, min(zero, end), left + wide / len(sums) - 0.3, max(zero, end)), colour)
        brush.line([(self._left, zero), (self._right, zero)], RULE, 0.5)

    def _draw_mark(self, brush: Brush, event: Event, line: float, share: float) -> None:
        x, unit = self._across(event.step + 0.5), self._unit
        colour = blended(PAGE, SIDES[self.side(event) % 2], 0.3 + 0.7 * share)
        if event.kind == "goal":
            brush.disc((x, line), 7 * unit, PAGE)
            brush.disc((x, line), 5.5 * unit, colour)
        elif event.kind in ("save", "lap"):
            points = [(x, line - 6 * unit), (x + 4.5 * unit, line), (x, line + 6 * unit), (x - 4.5 * unit, line)]
            brush.polygon(points, colour)
        elif event.kind != HIDDEN:
            brush.line([(x, line - 5 * unit), (x, line + 5 * unit)], colour, 1.6 * unit)

    def _paint_footer(self, picture: Image.Image, moment: FrameTime) -> None:
        """Draw the strips, bright up to the present step."""
        top, x, unit = self.size[1] - self._foot, self._across(moment.step), self._unit
        edge = round(x)
        picture.paste(self._bright.crop((0, 0, edge, self._foot)), (0, top))
        picture.paste(self._dull.crop((edge, 0, self.size[0], self._foot)), (edge, top))
        line = self.size[1] - 9 * unit
        with Brush(picture, (x - 6 * unit, top, x + 6 * unit, self.size[1]), 3) as brush:
            brush.line([(x, top + 3 * unit), (x, line)], faded(WHITE, 0.6), unit)
            brush.disc((x, line), 4.5 * unit, WHITE)

    def _paint_caption(self, picture: Image.Image, moment: FrameTime) -> None:
        """Draw the kind of the last event as a caption that fades."""
        steps = CAPTION_S / self.seconds
        recent = [e for e in self.facts.events if e.kind != HIDDEN and 0 <= moment.step - e.step - 0.5 < steps]
        if not recent or recent[-1].kind == "goal":
            return
        event, unit = recent[-1], self._unit
        left = 1 - (moment.step - event.step - 0.5) / steps
        strength = min(1.0, 3 * left)
        words, size = event.kind, round(16 * unit)
        wide = font(size).getlength(words) + 34 * unit
        x, y = self.size[0] / 2, self.size[1] - self._foot - 24 * unit
        with Brush(picture, (x - wide, y - 20 * unit, x + wide, y + 20 * unit), 3) as brush:
            pill = (x - wide / 2, y - 13 * unit, x + wide / 2, y + 13 * unit)
            brush.box(pill, faded(PAGE, 0.8 * strength), 13 * unit)
            brush.disc((x - wide / 2 + 14 * unit, y), 4.5 * unit, faded(SIDES[self.side(event) % 2], strength))
        write_text(picture, (x + 8 * unit, y), words, size, faded(INK, strength), "mm")

    def _paint_banner(self, picture: Image.Image, moment: FrameTime) -> None:
        """Draw the banner of a goal or of the final result."""
        unit, grown = self._unit, min(1.0, moment.since / 0.18)
        centre, y = self.size[0] / 2, self._head + (self.size[1] - self._head - self._foot) * 0.2
        words, colour = self._ending() if moment.cause is None else ("GOAL", SIDES[self.side(moment.cause) % 2])
        tall = 38 * unit * (1 - (1 - grown) ** 3)
        with Brush(picture, (0, y - 50 * unit, self.size[0], y + 50 * unit), 2) as brush:
            brush.box((0, y - tall, self.size[0], y + tall), faded(PAGE, 0.72))
            brush.box((0, y - tall, self.size[0], y - tall + 2.5 * unit), colour)
            brush.box((0, y + tall - 2.5 * unit, self.size[0], y + tall), colour)
        if grown >= 1:
            write_text(picture, (centre, y - 7 * unit), words, round(38 * unit), colour, "mm")
            write_text(picture, (centre, y + 22 * unit), self._underline(moment), round(15 * unit), INK, "mm")

    def _ending(self) -> tuple[str, Colour]:
        if len(set(self.facts.teams)) < 2:
            return "THE END", YELLOW
        if self.facts.outcome == 0:
            return "A DRAW", INK
        side = 0 if self.facts.outcome > 0 else 1
        return ("BLUE WINS", "ORANGE WINS")[side], SIDES[side]

    def _underline(self, moment: FrameTime) -> str:
        facts = self.facts
        if moment.cause is not None:
            return short_name(facts.players[self.side(moment.cause)])
        if len(set(facts.teams)) < 2:
            return f"{short_name(facts.players[0])}   {facts.length * self.seconds:.2f} s"
        score = " : ".join(f"{goals:g}" for goals in facts.score or self.score(facts.length))
        return f"{short_name(facts.players[0])}   {score or 'against'}   {short_name(facts.players[1])}"


def lead(value: Array, sides: list[Array]) -> Array | None:
    """The lead of the first side by the agents' value estimates [steps], scaled to at most 1; None without values."""
    known = [~np.isnan(value[:, rows]).all() for rows in sides]
    if not any(known):
        return None
    means = [
        np.nan_to_num(np.nanmean(value[:, rows], axis=1)) if has_values else None
        for rows, has_values in zip(sides, known, strict=True)
    ]
    first = means[0] if means[0] is not None else 0.0
    other = means[1] if len(means) > 1 and means[1] is not None else None
    ahead: Array = np.asarray(first if other is None else (first - other) / (2 if means[0] is not None else 1))
    if len(sides) < 2:
        ahead = ahead - ahead.min()
    return ahead / max(float(np.abs(ahead).max()), 1e-6)


def short_name(name: str) -> str:
    """A player's name without the folders of its path."""
    head, colon, rest = name.partition(":")
    return rest.rstrip("/").rpartition("/")[2] if head in ("run", "bundle") and colon else name


def key_moments(video: ReplayVideo) -> list[tuple[float, str]]:
    """Up to `CELLS` times of a replay with captions: the most important events first, then evenly spaced steps."""
    facts, found = video.facts, dict[int, tuple[float, str]]()
    others = sorted({event.kind for event in facts.events} - {*RANKS, HIDDEN})
    ranks = (*RANKS, *others, HIDDEN)
    chosen = [event for kind in ranks for event in facts.events if event.kind == kind]
    touches = 0
    for event in chosen:
        touches += event.kind == "touch"
        if len(found) >= CELLS or touches > 1:
            break
        near = any(abs(event.step - step) * video.seconds < 0.7 for step in found)
        if not near:
            words = "first touch" if event.kind == "touch" else event.kind
            step = min(event.step + (0.95 if event.kind == "goal" else 0.5), facts.length - 0.01)
            found[event.step] = step, f"{words}, {short_name(facts.players[video.side(event)])}"
    evenly = np.linspace(0, facts.length - 1, CELLS + 1).astype(int).tolist()
    for step in evenly:
        if len(found) >= CELLS:
            break
        if all(abs(step - other) * video.seconds > 1.0 for other in found):
            found[step] = float(step), "start" if step == 0 else ""
    return [found[step] for step in sorted(found)]


def contact_sheet(video: ReplayVideo) -> Image.Image:
    """One image of the key moments, numbered in the order of the time line below them."""
    times = key_moments(video)
    width, height = video.size
    unit, columns = height / 540, min(3, len(times))
    gap = round(14 * unit)
    cell = (width * 3 // 2 - gap * (columns + 1)) // columns
    tall = round(cell * 0.62)
    scene = video.scene((cell, tall))
    rows = math.ceil(len(times) / columns)
    end = video.frame(FrameTime(video.facts.length - 0.001, 0.0))
    head, foot = round(HEADER * height), round(FOOTER * height)
    whole = columns * (cell + gap) + gap
    page = Image.new("RGB", (whole, head + rows * (tall + 34 * round(unit) + gap) + foot + gap), PAGE)
    left = (whole - width) // 2
    page.paste(end.crop((0, 0, width, head)), (left, round(4 * unit)))
    for number, (step, words) in enumerate(times):
        x, y = gap + number % columns * (cell + gap), head + gap + number // columns * (tall + 34 * round(unit) + gap)
        picture = scene.paint(step)
        page.paste(picture, (x, y))
        with Brush(page, (x, y + tall, x + cell, y + tall + 34 * unit), 2) as brush:
            brush.box((x, y + tall, x + cell, y + tall + 28 * unit), PANEL, 4 * unit)
        score = video.score(step)
        texts = [f"{number + 1}", video.clock(step), words]
        texts += [" : ".join(map(str, score))] if len(score) > 1 else []
        place = (x + 10 * unit, y + tall + 14 * unit)
        write_text(page, place, "   ".join(filter(None, texts)), round(15 * unit), INK, width=cell - 20 * unit)
    page.paste(end.crop((0, height - foot, width, height)), (left, page.height - foot))
    return page


def image_sheet(images: Sequence[tuple[str, Image.Image]]) -> Image.Image:
    """Images of the same size with captions, in rows of three."""
    width, height = images[0][1].size
    columns, gap, text = min(3, len(images)), 14, 28
    rows = math.ceil(len(images) / columns)
    size = (columns * (width + gap) + gap, rows * (height + text + gap) + gap)
    page = Image.new("RGB", size, PAGE)
    for number, (words, picture) in enumerate(images):
        x, y = gap + number % columns * (width + gap), gap + number // columns * (height + text + gap)
        page.paste(picture, (x, y))
        write_text(page, (x, y + height + text / 2), f"{number + 1}   {words}", 15, INK, width=width)
    return page
