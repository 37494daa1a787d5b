"""What trackers are given of entries: groups of rows, kinds, steps. None of them is needed."""

import numpy as np
import pytest

from sawlog.errors import LogMismatchError
from sawlog.records import Entries, Records
from sawlog.sinks import _wandb_file
from sawlog.sinks._entries import step_mask
from sawlog.sinks._values import Kind, XAxis, bins, flat_config, groups, pixels


def grouped(counts=None, images=True, histograms=True, **entries):
    return groups(Records(entries), counts or {}, images=images, histograms=histograms)


def test_one_step_of_lanes_that_differ_is_the_first_that_was_logged():
    steps = np.array([[7, 1, 2], [8, 9, 3]])
    mask = np.array([[False, True, True], [False, False, True]])
    (group,) = grouped(x=Entries(np.ones((2, 3)), {"step": steps}, mask))
    assert group.steps == [1, 3]
    (group,) = grouped(x=Entries(np.ones((2, 3)), {"step": steps}))
    assert group.steps == [7, 8]


def test_names_belong_together_that_have_the_same_steps_masks_and_places():
    def names(found):
        return [list(group.columns) for group in found]

    one = Entries(np.array([1.0, 2.0]), {"step": np.array([3, 4])})
    later = Entries(np.array([1.0, 2.0]), {"step": np.array([4, 5])})
    masked = Entries(
        np.array([1.0, 2.0, 9.0]), {"step": np.array([3, 4, 5])}, np.array([True, True, False])
    )
    assert names(grouped(a=one, b=later, c=one, d=masked)) == [["a", "c", "d"], ["b"]]
    counted = Entries(np.array([1.0, 2.0]))
    found = grouped({"b": 5}, a=counted, b=counted, c=counted)
    assert names(found) == [["a", "c"], ["b"]]
    assert [list(group.steps) for group in found] == [[0, 1], [5, 6]]
    lanes = {"step": np.array([[0, 0], [1, 1]])}
    upper, lower = np.array([[True, False], [True, True]]), np.array([[False, True], [True, True]])
    parts = [Entries(np.ones((2, 2)), lanes, mask) for mask in (upper, lower)]
    assert names(grouped(a=parts[0], b=parts[1])) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((4, 5), Kind.HISTOGRAM),
        ((4, 5, 6), Kind.IMAGE),
        ((4, 5, 6, 3), Kind.IMAGE),
        ((4, 5, 6, 2), Kind.HISTOGRAM),
        ((4, 5, 6, 3, 1), Kind.HISTOGRAM),
    ],
)
def test_the_kind_of_arrays(shape, kind):
    (group,) = grouped(x=Entries(np.zeros(shape)))
    assert group.columns["x"].kind is kind
    (group,) = grouped(images=False, x=Entries(np.zeros(shape)))
    assert group.columns["x"].kind is Kind.HISTOGRAM
    assert bool(grouped(histograms=False, x=Entries(np.zeros(shape)))) == (kind is Kind.IMAGE)


def test_a_picture_that_is_masked_in_part_is_a_histogram_of_the_rest():
    mask = np.array([[True, False], [True, True]])
    values = np.arange(12.0).reshape(2, 2, 3)
    (group,) = grouped(x=Entries(values, mask=mask))
    assert group.columns["x"].kind is Kind.HISTOGRAM
    first, second = group.columns["x"].items
    assert first.tolist() == [[0, 1, 2]]
    assert second.tolist() == values[1].tolist()


@pytest.mark.parametrize(
    ("dtype", "single"),
    [
        *((dtype, True) for dtype in ("b1", "i2", "u2", "f2", "f4")),
        *((dtype, False) for dtype in ("i4", "u4", "i8", "f8")),
    ],
)
def test_what_fits_into_single_precision(dtype, single):
    (group,) = grouped(x=Entries(np.ones(2, dtype)))
    assert group.columns["x"].single is single


def test_which_axis_is_the_step():
    epochs, steps = np.array([1, 2]), np.array([30, 40])
    for axes, axis, found in (
        ({"epoch": epochs, "step": steps}, "epoch", [1, 2]),
        ({"step": steps, "epoch": epochs}, "step", [30, 40]),
        ({"epoch": epochs}, "epoch", [1, 2]),
        ({"turn": steps, "epoch": epochs}, "turn", [30, 40]),
        ({"time": epochs + 0.5}, None, [3, 4]),
    ):
        (group,) = grouped({"x": 3}, x=Entries(np.ones(2), axes))
        assert (group.axis, list(group.steps)) == (axis, found)
        assert set(group.others) == set(axes) - {axis}
    both = {"step": steps, "epoch": epochs}
    (group,) = grouped(x=Entries(np.ones(2), both), epoch=Entries(epochs, both))
    assert set(group.others) == set()


def test_pictures_brighter_than_one_and_darker_than_nothing():
    assert pixels(np.array([[0.0, 2.0, 4.0]])).tolist() == [[0, 128, 255]]
    assert pixels(np.array([[-2.0, 0.0]])).tolist() == [[0, 255]]
    assert pixels(np.array([[0.0, 1.0]])).tolist() == [[0, 255]]


def test_an_axis_that_nothing_has_is_told_of_soon_and_once():
    x = XAxis("stpe")
    assert x.of(["step"], 999) == "step"
    assert x.of([], 10**6) is None  # has no axis at all, and says nothing about the name
    with pytest.warns(UserWarning, match=r"x='stpe': no log has this step axis.*'step'"):
        assert x.of(["step", "epoch"], 1) == "step"
    assert x.of(["step"], 10**6) == "step"
    x.warn()


def chunk(data, kind=_wandb_file.FULL):
    return b"\xff" * 4 + len(data).to_bytes(2, "little") + bytes([kind]) + data


def test_the_end_of_a_file_of_wandb(tmp_path):
    """Records lie in blocks; one that does not fit goes on in the next, and so does the last."""
    ended = bytes([0x92, 1, 0])  # the field 18, of no bytes
    file, block, size = tmp_path / "run.wandb", _wandb_file.BLOCK, _wandb_file.HEADER
    for blocks in (1, 2, 4):
        for left in (0, size - 1, size, size + 1, size + 3):  # where the end begins, in its block
            body = _wandb_file.MAGIC.ljust(size, b"\1")
            for at in range(1, blocks + 1):
                rest = at * block - left * (at == blocks) - len(body) - size - 4
                number = bytes([rest & 127 | 128, rest >> 7 & 127 | 128, rest >> 14])
                body += chunk(bytes([2 << 3 | 2]) + number + b"\xff" * rest)
            before = len(body)
            if left < size:
                body += bytes(left) + chunk(ended)
            else:
                here = left - size
                parts = (_wandb_file.FULL,) if here == 3 else (_wandb_file.FIRST, _wandb_file.LAST)
                body += chunk(ended[:here], parts[0])
                body += chunk(ended[here:], parts[1]) if here < 3 else b""
            for stop in (before, len(body) - 1):
                file.write_bytes(body[:stop])
                assert not _wandb_file.has_ended(file)
            file.write_bytes(body)
            assert _wandb_file.has_ended(file), (blocks, left)
            assert _wandb_file.is_known(file)


@pytest.mark.parametrize("other", [0, 1, 2])
def test_a_value_with_the_name_of_its_axis_has_the_same_numbers(other):
    steps = np.array([3, 4, 5])
    (group,) = grouped(step=Entries(steps.astype(float), {"step": steps}))
    assert (list(group.columns), group.others) == (["step"], {})
    values = steps.astype(float)
    values[other] += 1
    with pytest.raises(LogMismatchError, match=r"'step' is the name of a value and of a step axis"):
        grouped(step=Entries(values, {"step": steps}))


@pytest.mark.parametrize(
    "values",
    [
        [1.0, np.nextafter(1.0, 2.0), 1.0],  # too close together for 64 edges
        [-1.7e308, 0.0, 1.7e308],  # too far apart
        [np.nan, 2.0, 3.0, np.inf, 4.0, -np.inf],
    ],
)
def test_every_finite_element_is_in_one_bin(values):
    counts, edges = bins(np.array(values))
    finite = [value for value in values if np.isfinite(value)]
    assert counts.sum() == 3 == len(finite)
    assert len(edges) == len(counts) + 1
    assert (edges[0], edges[-1]) == (min(finite), max(finite))


def test_a_step_was_logged_where_anything_of_its_lane_was():
    mask = np.array([[[True, False], [False, False]], [[False, False], [True, True]]])
    entries = Entries(np.zeros((2, 2, 2)), mask=mask)
    assert step_mask(entries, np.zeros((2, 2))).tolist() == [[True, False], [False, True]]
    assert step_mask(entries, np.zeros(2)).tolist() == [True, True]
    assert step_mask(entries, np.zeros((2, 2, 2))) is mask
    assert step_mask(entries, np.zeros((2, 3))) is None  # no axis of the values


def test_settings_are_flat_at_any_depth():
    config = {"a": {"b": {"c": 1, "d": {}}, "e": [1]}, "f": None}
    assert flat_config(config) == {"a/b/c": 1, "a/b/d": {}, "a/e": [1], "f": None}
