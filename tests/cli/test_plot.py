"""``sawlog plot``: every point is where it should be, in the terminal, in JSON and in a file."""

import unicodedata

import numpy as np
import pytest

import sawlog.store

PLACES = {1: (0, 0), 2: (1, 0), 3: (2, 0), 4: (0, 1), 5: (1, 1), 6: (2, 1), 7: (3, 0), 8: (3, 1)}


def dots(lines):
    """The dots of braille characters as ``{(row from above, column)}``, by their Unicode names."""
    found = set()
    for line, text in enumerate(lines):
        for at, mark in enumerate(text):
            if mark != " ":
                for dot in unicodedata.name(mark).removeprefix("BRAILLE PATTERN DOTS-"):
                    row, column = PLACES[int(dot)]
                    found.add((4 * line + row, 2 * at + column))
    return found


@pytest.fixture
def heights(tmp_path):
    """48 rows and 40 columns of dots, which 20 characters have; a height for each column."""
    up = np.random.default_rng(0).integers(0, 48, 40)
    up[7], up[20] = 0, 47
    return up


@pytest.mark.parametrize("log", [False, True])
def test_each_point_is_a_dot_and_the_ends_are_named(sawlog_, tmp_path, heights, log):
    values = 10.0 ** (heights / 47 * 3 - 1) if log else heights / 47 * 8 - 3
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": values}, step=np.arange(100, 140))
    done = sawlog_("plot", tmp_path / "run", *(["--log"] if log else []), width=32)
    name, *lines, foot = done.out.rstrip("\n").splitlines()
    assert (name, len(lines)) == ("loss", 12)
    wanted = {(47 - int(up), column) for column, up in enumerate(heights)}
    lit = dots([line[11:] for line in lines])
    assert wanted <= lit
    for row, column in lit - wanted:  # on the way from one point to the next
        between = sorted(47 - heights[max(0, column - 1) : column + 1])
        assert between[0] < row < between[-1]
    assert [line[:11].strip() for line in lines] == (
        ["100" if log else "5", *[""] * 10, "0.1" if log else "-3"]
    )
    assert foot.split() == ["step", "100", "139"]


def test_a_log_scale_leaves_out_what_has_no_logarithm(sawlog_, tmp_path):
    with sawlog.store.create(tmp_path / "run") as writer:
        writer.extend({"loss": np.array([-1.0, 0.0, 1.0, 100.0])}, step=np.arange(4))
        writer.extend({"none": np.array([-1.0, 0.0])}, step=np.arange(2))
    done = sawlog_("plot", tmp_path / "run", "--log", width=32)
    assert "none  no finite value above 0" in done.out
    assert done.out.splitlines()[-4].split()[:3] == ["step", "2", "3"]


# -- more points than a curve has, several axes and runs -------------------------------------------


@pytest.fixture
def runs(tmp_path):
    """Two runs with seven names; the curves of 2,500 steps are thinned to 1,000 points."""
    steps = np.arange(2500)
    for seed in range(2):
        with sawlog.store.create(tmp_path / "runs" / f"seed-{seed}") as writer:
            for name in "abcdefg":
                values = steps * 1.0 + seed if name != "b" else np.where(steps % 2, 3.0, 1.0)
                writer.extend({name: values}, step=steps, half=steps // 2)
    return tmp_path / "runs"


def test_ranges_and_axes_in_json(sawlog_, runs):
    for axis, last in (("step", 2499), ("half", 1249)):
        found = sawlog_("plot", runs, "--names", "b", "--axis", axis, "--json").json["b"]
        assert list(found) == ["seed-0", "seed-1"]
        curve = found["seed-1"]
        assert (curve["axis"], curve["entries"]) == (axis, 2500)
        assert len(curve["steps"]) == 1000
        assert last - 3 <= curve["steps"][-1] <= last
        assert set(curve["min"]) == {1.0}
        assert set(curve["max"]) == {3.0}
        assert 1.0 < min(curve["mean"]) <= max(curve["mean"]) < 3.0


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved."""
    from matplotlib.figure import Figure

    saved = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: saved.append(self))
    return saved


@pytest.mark.parametrize("names", ["a", "bca", "abcd", "gfedcba"])
def test_a_plot_of_each_name_in_a_file(sawlog_, runs, figures, tmp_path, names):
    done = sawlog_("plot", runs, "--names", *names, "-o", tmp_path / "a.png")
    assert (done.code, done.err) == (0, "")
    (figure,) = figures
    drawn = [axes for axes in figure.axes if axes.axison]
    assert sorted(axes.get_title() for axes in drawn) == sorted(names)
    for axes in drawn:
        assert (axes.get_xlabel(), axes.get_yscale()) == ("step", "linear")
        assert [line.get_label() for line in axes.get_lines()] == ["seed-0", "seed-1"]
        assert axes.get_legend() is not None
        json = sawlog_("plot", runs, "--names", axes.get_title(), "--json").json
        for line, curve in zip(axes.get_lines(), json[axes.get_title()].values(), strict=True):
            np.testing.assert_array_equal(line.get_xdata(), curve["steps"])
            np.testing.assert_array_equal(line.get_ydata(), curve["mean"])
        assert len(axes.collections) == 2  # the range of each


def test_options_of_a_file(sawlog_, runs, figures, tmp_path):
    done = sawlog_("plot", runs, "--axis", "half", "--log", "-o", tmp_path / "new" / "a.svg")
    assert (done.code, done.err) == (0, "note: 1 more names; --names chooses\n")
    assert [axes.get_title() for axes in figures[0].axes if axes.axison] == list("abcdef")
    for axes in figures[0].axes[:6]:
        assert (axes.get_xlabel(), axes.get_yscale()) == ("half", "log")
    sawlog_("plot", runs / "seed-1", "--names", "a", "-o", tmp_path / "a.svg")
    assert figures[1].axes[0].get_legend() is None
