"""Sparklines and tables."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from sawlog._table import TableColumn, table
from sawlog._trend import BLOCKS, sparkline
from sawlog.inspect._trend import TrendBuilder

FLOATS = hnp.arrays(np.float64, st.integers(1, 600), elements=st.floats(width=32))


def trend_of(values, cuts=(), mask=None):
    builder, start = TrendBuilder(len(values)), 0
    for stop in (*cuts, len(values)):
        part = None if mask is None else mask[start:stop]
        builder.add(values[start:stop], start, part)
        start = stop
    return builder.trend()


@given(FLOATS, st.lists(st.integers(1, 600), max_size=4))
def test_a_trend_is_the_same_however_it_is_read(values, cuts):
    cuts = sorted({cut for cut in cuts if cut < len(values)})
    trend = trend_of(values, cuts)
    finite = values[np.isfinite(values)]
    assert trend.nans == np.isnan(values).sum()
    assert trend.infinities == np.isinf(values).sum()
    if not len(finite):
        assert trend.least is trend.mean is trend.greatest is None
        return
    assert (trend.least, trend.greatest) == (finite.min(), finite.max())
    assert trend.mean == pytest.approx(finite.mean(), rel=1e-9, abs=np.abs(finite).max() * 1e-12)


@given(FLOATS, st.integers(1, 80))
def test_a_means_is_made_of_means(values, width):
    means = trend_of(values).means(width)
    assert len(means) == min(width, len(values))
    line = sparkline(means)
    assert len(line) == len(means)
    assert set(line) <= {*BLOCKS, "x"}
    if width >= len(values):
        finite = np.isfinite(values)
        assert [mean for mean, ok in zip(means, finite, strict=True) if ok] == list(values[finite])
        assert [char == "x" for char in line] == list(~finite)


def test_means_of_equal_parts():
    assert trend_of(np.arange(1000.0)).means(4) == [124.5, 374.5, 624.5, 874.5]


def test_integers_keep_their_exact_ends():
    trend = trend_of(np.array([2**63 - 1, -(2**63)], np.int64))
    assert (trend.least, trend.greatest) == (-(2**63), 2**63 - 1)


def test_nothing_overflows():
    most = np.finfo(np.float64).max
    means = trend_of(np.array([most, most, -most, most])).means(2)
    assert means[0] == most
    assert len(sparkline(means)) == 2


@pytest.mark.parametrize(
    ("means", "line"),
    [
        ([], ""),
        ([5.0], "▄"),
        ([0.0, 7.0], "▁█"),
        ([-1e300, 1e300], "▁█"),
        ([None, float("nan")], " x"),
        (list(map(float, range(8))), BLOCKS),
    ],
)
def test_sparkline(means, line):
    assert sparkline(means) == line


def test_spark_in_ascii():
    assert sparkline([0.0, 7.0, None, float("nan")], unicode=False) == "_# x"


# ---- tables

COLUMNS = (
    TableColumn("name", folds=10),
    TableColumn("n", right=True, rank=1),
    TableColumn("unimportant", rank=2),
    TableColumn("empty"),
    TableColumn("drawn", elastic=True),
)
ROWS = [
    ["q" * 25, "1,000", "something", "", lambda width: "#" * width],
    ["损失", "2", "other", "", ""],
]


def printed(width, rows=ROWS):
    console = Console(file=io.StringIO(), width=width)
    console.print(table(COLUMNS, rows, width))
    return console.file.getvalue()


@pytest.mark.parametrize("width", range(3, 120, 7))
def test_a_table_fits_and_loses_nothing_important(width):
    text = printed(width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert text.count("q") == 25
    assert "empty" not in text


def test_columns_drop_out_by_rank():
    assert "something" in printed(80)
    assert "#" * 40 in printed(120)
    assert "something" not in printed(39)
    assert "1,000" in printed(39)
    assert "1,000" not in printed(24)
    assert {"1,000", "something"} <= set(printed(19).split())  # a list, which has all again


def test_styled_cells():
    text = printed(100, [[Text("a", "red"), "1", Text("b"), "", ""]])
    assert text.split() == ["name", "n", "unimportant", "a", "1", "b"]
