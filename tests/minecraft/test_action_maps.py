"""Action maps: dicts of buttons and camera to actions, and back."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.errors import ConfigError, DemoError
from slipstream.minecraft.action_maps import (  # fmt: skip
    BUTTONS,
    FULL,
    LINEAR,
    TABLE_8,
    TABLE_14,
    VPT_BUTTONS,
    CameraBins,
    FullMap,
    TableMap,
    VptMap,
    action_map,
    codes,
)

VPT = VptMap()


def one(**done: object) -> dict[str, np.ndarray]:
    """Return the game's action of one step."""
    return {"camera": np.zeros((1, 2), np.float32)} | {name: np.array([value]) for name, value in done.items()}


@pytest.mark.parametrize(("table", "size"), [(TABLE_14, 14), (TABLE_8, 8)])
def test_a_table_is_invertible(table: TableMap, size: int) -> None:
    """Encoding the decoded entry gives the entry, for all of them."""
    every = np.arange(size, dtype=np.int32)[:, None]
    assert table.spec.sizes == (size,) and table.spec.kind == "discrete"
    found = table.encode(table.decode(every))
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, every)


def test_the_entries_of_the_tables() -> None:
    """The two tables have their entries in the documented order."""
    walk = ("noop", "forward", "back", "left", "right", "jump", "jump+forward", "sprint+forward")
    looks = ("look left", "look right", "look up", "look down")
    assert TABLE_14.names == (*walk, "attack", "attack+forward", *looks)
    assert TABLE_8.names == ("noop", "forward", "jump+forward", "attack", *looks)


def test_a_decoded_action_is_valid_for_the_game() -> None:
    """Every button is 0 or 1, and the camera is degrees of pitch and yaw: up and left are negative."""
    found = TABLE_14.decode(np.array([[7], [10], [11], [12], [13]]))
    assert set(found) == {*BUTTONS, "camera"}
    assert found["sprint"].tolist() == [1, 0, 0, 0, 0] and found["forward"].tolist() == [1, 0, 0, 0, 0]
    assert found["sneak"].dtype == np.int64 and not found["sneak"].any()
    assert found["camera"].dtype == np.float32
    assert found["camera"].tolist() == [[0, 0], [0, -15], [0, 15], [-15, 0], [15, 0]]
    assert TableMap(TABLE_14.names, look=10.0).decode(np.array([[11]]))["camera"].tolist() == [[0, 10]]


@pytest.mark.parametrize(
    ("pressed", "in_14", "in_8"),
    [
        (["sneak"], "noop", "noop"),
        (["forward", "left"], "forward", "forward"),
        (["forward", "jump", "sprint"], "jump+forward", "jump+forward"),
        (["forward", "sprint"], "sprint+forward", "forward"),
        (["sprint"], "noop", "noop"),
        (["attack", "forward", "jump"], "attack+forward", "attack"),
        (["attack", "left"], "attack", "attack"),
        (["jump", "left"], "jump", "noop"),
        (["back", "right"], "back", "noop"),
        (["left", "right"], "left", "noop"),
    ],
)
def test_the_nearest_entry(pressed: list[str], in_14: str, in_8: str) -> None:
    """If no entry has all buttons, the first that differs by priority decides."""
    given = one(**dict.fromkeys(pressed, 1))
    assert TABLE_14.names[TABLE_14.encode(given)[0, 0]] == in_14
    assert TABLE_8.names[TABLE_8.encode(given)[0, 0]] == in_8


def test_the_nearest_entry_is_the_nearest_of_all() -> None:
    """For every combination of buttons the entry equals that of a plain search."""
    rank = ("attack", "forward", "jump", "sprint", "back", "left", "right")
    combinations = np.array(np.unravel_index(np.arange(128), (2,) * 7))
    given = dict(zip(rank, combinations, strict=True)) | {"camera": np.zeros((128, 2))}
    still = [n for n, name in enumerate(TABLE_14.names) if not name.startswith("look")]
    for step, found in enumerate(TABLE_14.encode(given)[:, 0]):
        differences = {n: [abs(int(TABLE_14.pressed[b][n]) - int(given[b][step])) for b in rank] for n in still}
        assert found == min(still, key=differences.__getitem__)


@pytest.mark.parametrize(
    ("camera", "entry"),
    [
        ((0, 4.9), "attack"), ((0, 5), "look right"), ((0, -5), "look left"), ((5, 0), "look down"),
        ((-180, 20), "look up"), ((20, -20), "look left"), ((-6, 5.5), "look up"), ((4, -4), "attack"),
    ],
)  # fmt: skip
def test_the_camera_comes_first(camera: tuple[float, float], entry: str) -> None:
    """A camera movement of the margin or more is a look along the larger axis, whatever is pressed."""
    given = one(attack=1) | {"camera": np.array([camera])}
    assert TABLE_14.names[TABLE_14.encode(given)[0, 0]] == entry


def test_a_look_that_is_not_in_the_table() -> None:
    """A table without `look up` encodes the buttons instead."""
    table = TableMap(("noop", "attack", "look left"))
    given = one(attack=1) | {"camera": np.array([[-30.0, 0.0]])}
    assert table.encode(given).tolist() == [[1]]


def test_a_margin_beyond_the_look_is_an_error() -> None:
    """A look smaller than the margin is an error."""
    with pytest.raises(ConfigError, match=r"`look` = 3 .* `margin` = 5"):
        TableMap(TABLE_8.names, look=3.0)


def test_linear_bins() -> None:
    """Eleven equal bins of 2 degrees: centres are kept, and angles beyond the limit are clipped."""
    assert LINEAR.count == 11
    assert LINEAR.discretise([-90, -10, -9.1, -1.1, 0, 0.9, 4, 10, 90]).tolist() == [0, 0, 0, 4, 5, 5, 7, 10, 10]
    assert LINEAR.undiscretise(np.arange(11)).tolist() == [-10, -8, -6, -4, -2, 0, 2, 4, 6, 8, 10]


def test_mu_law_bins() -> None:
    """VPT's bins (limit 10, width 2, mu 10): the centre of bin 6 is (11^0.2 - 1) degrees, computed by hand."""
    bins = CameraBins(10.0, 2.0, 10.0)
    assert bins.count == 11
    by_hand = [11 ** (n / 5) - 1 for n in range(6)]  # 0, 0.6154, 1.6095, 3.2155, 5.8097, 10
    np.testing.assert_allclose(bins.undiscretise(np.arange(5, 11)), by_hand, rtol=1e-6)
    np.testing.assert_allclose(bins.undiscretise(np.arange(5, -1, -1)), -np.array(by_hand), rtol=1e-6)
    np.testing.assert_array_equal(bins.discretise(bins.undiscretise(np.arange(11))), np.arange(11))
    # ln(1 + 0.75) / ln(11) = 0.23338, times 5 is 1.1669: bin 5 + 1; -1.35 degrees: 1.7815, so bin 5 - 2
    assert bins.discretise([0.75, -1.35]).tolist() == [6, 3]


@pytest.mark.parametrize("full", [FULL, FullMap(VPT_BUTTONS, LINEAR), FullMap(("jump",), None)])
def test_the_full_map_is_invertible(full: FullMap) -> None:
    """Every option of every part is the same after decoding and encoding."""
    random = np.random.default_rng(0)
    every = np.stack([random.integers(0, size, 400) for size in full.spec.sizes], axis=1).astype(np.int32)
    np.testing.assert_array_equal(full.encode(full.decode(every)), every)
    assert all(len(np.unique(column)) == size for column, size in zip(every.T, full.spec.sizes, strict=True))


def test_the_full_map_has_switches_then_strings_then_the_camera() -> None:
    """Buttons are binary parts, strings are choices, pitch and yaw have their own bins."""
    full = action_map("full", buttons=("jump", "use"), choices={"craft": ("none", "planks", "stick")})
    assert full.spec.sizes == (2, 2, 3, 11, 11)
    assert full.spec.binary == (True, True, False, False, False)
    given = one(jump=1, craft="stick") | {"camera": np.array([[-10.0, 0.0]])}
    assert full.encode(given).tolist() == [[1, 0, 2, 0, 5]]
    found = full.decode(np.array([[0, 1, 1, 5, 10]]))
    assert found["craft"].tolist() == ["planks"] and found["use"].tolist() == [1]
    assert found["camera"].tolist() == [[0.0, 10.0]]


BY_HAND = [
    # The groups of a combination count, from the last: camera 1, jump 2, attack 4, drop 8, use 16, sprint and sneak 32
    # and 64, left and right 96 and 192, forward and back 288 and 576, hotbar 864 for each number.
    ((0, 60), set(), (0.0, 0.0)),
    ((0, 120), set(), (0.0, 0.0)),  # without `camera` it does not move
    ((1, 120), set(), (10.0, 10.0)),
    ((1, 0), set(), (-10.0, -10.0)),
    ((1, 5 * 11 + 10), set(), (0.0, 10.0)),  # pitch first: yaw to the right
    ((1, 6 * 11 + 5), set(), (11**0.2 - 1, 0.0)),  # one bin down
    ((288 + 32 + 2, 7), {"forward", "sprint", "jump"}, (0.0, 0.0)),
    (
        (864 * 3 + 576 + 96 + 64 + 16 + 8 + 4, 60),
        {"hotbar.3", "back", "left", "sneak", "use", "drop", "attack"},
        (0, 0),
    ),
    ((8639, 60), {"hotbar.9", "back", "right", "sneak", "use", "drop", "attack", "jump"}, (0.0, 0.0)),
    ((8640, 0), {"inventory"}, (0.0, 0.0)),  # nothing beside it
]


@pytest.mark.parametrize(("action", "pressed", "camera"), BY_HAND)
def test_the_actions_of_vpt(action: tuple[int, int], pressed: set[str], camera: tuple[float, float]) -> None:
    """Combinations of buttons and bins of the camera are decoded as computed by hand."""
    found = VPT.decode(np.array([action]))
    assert {name for name, value in found.items() if name != "camera" and value[0]} == pressed
    np.testing.assert_allclose(found["camera"], [camera], rtol=1e-6)
    assert found["camera"].dtype == np.float32 and set(found) <= {*VPT_BUTTONS, "camera"}


def test_the_map_of_vpt_is_invertible() -> None:
    """All combinations and all bins are the same after decoding and encoding, where the camera moves."""
    assert VPT.spec.sizes == (8641, 121) and action_map("vpt") == VPT
    still = np.append(np.arange(0, 8640, 2), 8640)  # odd combinations move the camera
    for combinations, bin in ((still, 60), (np.arange(1, 8640, 2), 37)):
        every = np.stack([combinations, np.full(len(combinations), bin)], axis=1)
        np.testing.assert_array_equal(VPT.encode(VPT.decode(every)), every)
    bins = np.stack([np.full(121, 1), np.arange(121)], axis=1)
    bins[60, 0] = 0  # at rest
    np.testing.assert_array_equal(VPT.encode(VPT.decode(bins)), bins)


@pytest.mark.parametrize(
    ("pressed", "expected"),
    [
        (("forward", "back", "jump"), (2, 60)),  # opposite directions cancel out
        (("left", "right"), (0, 60)),
        (("sprint", "sneak"), (64, 60)),  # the later one
        (("hotbar.2", "hotbar.7"), (7 * 864, 60)),
        (("inventory", "attack"), (8640, 60)),
        (("pickItem", "swapHands", "ESC"), (0, 60)),  # VPT does not have them
    ],
)
def test_buttons_that_exclude_each_other(pressed: tuple[str, ...], expected: tuple[int, int]) -> None:
    """One button of each group is encoded."""
    assert VPT.encode(one(**dict.fromkeys(pressed, 1))).tolist() == [list(expected)]


def test_unknown_strings_are_an_error() -> None:
    """An unknown string is an error, and so are numbers in place of strings."""
    words = ("none", "planks", "log")
    assert codes(np.array(["log", "none", "planks"]), words, "craft").tolist() == [2, 0, 1]
    with pytest.raises(DemoError, match="`craft` is `torch`, which is none of: none, planks, log"):
        codes(np.array(["none", "torch"]), words, "craft")
    with pytest.raises(DemoError, match="`craft` should be strings but is int64"):
        codes(np.array([1]), words, "craft")


def test_maps_by_name() -> None:
    """`14`, `8`, `full` and `vpt` are maps; any other name is an error."""
    assert action_map("14") == TABLE_14 and action_map("8") == TABLE_8 and action_map("full") == FULL
    assert action_map("8", look=10.0, margin=2.0) == TableMap(TABLE_8.names, 10.0, 2.0)
    with pytest.raises(ConfigError, match=r"There is no action map `fulll`\. Did you mean `full`\?"):
        action_map("fulll")
