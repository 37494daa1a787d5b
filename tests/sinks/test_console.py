"""What the console knows: its numbers against numpy."""

import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sawlog.records import Entries, Records
from sawlog.sinks import ConsoleSink
from sawlog.sinks._console import _digest, _view
from sawlog.sinks._console._running_trend import BINS, RunningTrend
from sawlog.testing import SinkContract
from tests.thorough import examples

from .console_helpers import entries, only_row, quiet


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


# ---- the contract: every sink keeps it, and this one keeps last values, counts and trends


class TestConsoleSink(SinkContract):
    def make(self, path):
        return ConsoleSink("run", dashboard=quiet())

    def expect(self, sink, path, expected):
        rows = {row.name: row for row in sink.dashboard.snapshot(points=BINS).rows}
        assert set(rows) == set(expected)
        for name, written in expected.items():
            steps, last = written[-1]
            means = [float(np.mean(value)) for _, value in written]
            assert sink.dashboard._state.count(sink._run, name) == len(written)
            assert rows[name].steps == tuple(steps.values()) * 2
            np.testing.assert_array_equal(
                rows[name].trend, np.where(np.isfinite(means), means, np.nan)
            )
            if np.ndim(last):
                assert (rows[name].shape, rows[name].std) == (np.shape(last), np.std(last))
            assert rows[name].mean == np.mean(last)

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint64"])
    def test_values_are_exact(self, tmp_path, dtype):
        numbers = [1, 1 / 3, 1e30, -1e-30, 2**24 + 1] if dtype[0] == "f" else [0, 5, 2**31 - 1]
        for value in np.array(numbers).astype(dtype):
            sink = self.make(tmp_path)
            sink.write(Records({"x": entries([value])}))
            sink.close()
            assert only_row(sink.dashboard).mean == value.item()


# ---- the trend


def trend_of(series):
    """Independently: all pairs of place and value, in the bins of their final width."""
    pairs = [(place, value) for values in series for place, value in enumerate(values)]
    longest = max(map(len, series))
    stride = 1
    while (longest - 1) // stride >= BINS:
        stride *= 2
    out = []
    for start in range(0, longest, stride):
        own = [value for place, value in pairs if start <= place < start + stride]
        finite = [value for value in own if math.isfinite(value)]
        out.append(math.fsum(finite) / len(finite) if finite else math.nan if own else None)
    return out


@examples(15, 40)
@given(st.data())
def test_any_chunks_give_the_same_trend(data):
    numbers = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
    block = data.draw(st.lists(numbers, min_size=1, max_size=20))
    lengths = data.draw(st.lists(st.integers(1, 1500), min_size=1, max_size=3))
    series = [np.resize(np.roll(block, shift), n) for shift, n in enumerate(lengths)]
    trend, left = RunningTrend(), [(number, 0) for number in range(len(series))]
    while left:
        number, at = left.pop(data.draw(st.integers(0, len(left) - 1)))
        stop = at + data.draw(st.integers(0, 700))
        trend.add(series[number][at:stop], at)
        if stop == at:  # nothing is added by nothing
            trend.add(series[number][at : at + 1], at)
            stop = at + 1
        if stop < len(series[number]):
            left.append((number, stop))
    found, expected = trend.means(BINS), trend_of([list(each) for each in series])
    assert [value is None for value in found] == [value is None for value in expected]
    np.testing.assert_allclose(
        [np.nan if v is None else v for v in found],
        [np.nan if v is None else v for v in expected],
        rtol=1e-9,
        atol=1e-6,
    )


@pytest.mark.parametrize("chunk", [1, 17, 10_000])
@pytest.mark.parametrize("count", [BINS - 1, BINS, BINS + 1, 2 * BINS, 2 * BINS + 1, 4 * BINS + 1])
def test_a_trend_about_as_long_as_its_bins(count, chunk):
    series = np.arange(count, dtype=float)
    trend = RunningTrend()
    for start in range(0, count, chunk):
        trend.add(series[start : start + chunk], start)
    np.testing.assert_allclose(trend.means(BINS), trend_of([series.tolist()]), rtol=1e-9)


def test_a_trend_of_any_length_has_few_points():
    trend = RunningTrend()
    for start in range(0, 1_000_000, 50_000):
        trend.add(np.arange(start, start + 50_000, dtype=float), start)
    points = trend.means(10)
    assert len(points) == 10
    assert points == sorted(points)
    assert points[0] < 100_000
    assert points[-1] > 900_000
    assert RunningTrend().means(10) == []


def test_sums_that_overflow():
    trend = RunningTrend()
    trend.add(np.full(2000, 1.7e308), 0)
    assert set(trend.means(8)) == {1.7e308}


# ---- values over runs


def test_mean_and_spread_over_runs():
    board = quiet()
    values = np.random.default_rng(0).normal(size=(8, 30))
    sinks = [ConsoleSink(f"seed-{seed}", dashboard=board) for seed in range(8)]
    for start in (0, 7, 19):
        stop = {0: 7, 7: 19, 19: 30}[start]
        for sink, own in zip(sinks, values, strict=True):
            sink.write(Records({"loss": entries(own[start:stop], start)}))
    row, last = only_row(board), values[:, -1]
    np.testing.assert_allclose([row.mean, row.std], [last.mean(), last.std()])
    assert (row.least, row.greatest, row.runs, row.steps) == (last.min(), last.max(), 8, (29, 29))
    np.testing.assert_allclose(row.trend, values.mean(axis=0))


def test_elements_of_arrays_over_runs():
    board = quiet()
    values = np.random.default_rng(0).normal(size=(3, 5, 4, 2)).astype(np.float32)
    values[1, -1, 0, 0] = np.nan
    for seed, own in enumerate(values):
        ConsoleSink(f"{seed}", dashboard=board).write(Records({"w": entries(own)}))
    row, last = only_row(board), values[:, -1].astype(float)
    np.testing.assert_allclose([row.mean, row.std], [np.nanmean(last), np.nanstd(last)])
    assert (row.least, row.greatest) == (np.nanmin(last), np.nanmax(last))
    assert (row.shape, row.odd) == ((4, 2), {"not finite": 1})
    np.testing.assert_allclose(
        row.trend, np.nanmean(values.astype(float), axis=(2, 3)).mean(0), rtol=0.05
    )


def test_what_is_not_finite_is_counted():
    board = quiet()
    for seed, value in enumerate([1.0, math.nan, math.inf, 3.0]):
        ConsoleSink(f"{seed}", dashboard=board).write(Records({"x": entries([value])}))
    row = only_row(board)
    assert (row.mean, row.std, row.odd) == (2.0, 1.0, {"nan": 1, "inf": 1})
    lines = _view.table(board.snapshot, "t", 80, 20)
    (value,) = [line for line in lines if line.plain.startswith("x")]
    assert "1 nan, 1 inf 2.000" in value.plain
    at = value.plain.index("1 nan")
    assert any("red" in str(span.style) and span.start <= at < span.end for span in value.spans)


def test_a_name_of_some_runs():
    board = quiet()
    for seed in range(3):
        ConsoleSink(f"{seed}", dashboard=board).write(
            Records({"x": entries([1.0])} | ({"y": entries([1.0])} if seed == 1 else {}))
        )
    text = "\n".join(line.plain for line in _view.table(board.snapshot, "t", 120, 20))
    assert re.search(r"^y .* 1/3", text, re.MULTILINE)
    assert not re.search(r"^x .* \d/3", text, re.MULTILINE)


STRANGE = {
    "bool": np.array([True, False]),
    "int8": np.array([-3, 4], np.int8),
    "uint64": np.array([2**64 - 1], np.uint64),
    "int64": np.array([-(2**63)]),
    "half": np.array([6e4, np.inf], np.float16),
    "bfloat16": np.array([1.5, np.nan], ml_dtypes.bfloat16),
    "fp8": np.array([[1.5, 448.0]], ml_dtypes.float8_e4m3fn),
    "int4": np.array([-8, 7], ml_dtypes.int4),
    "complex": np.array([1 + 2j]),
    "complexes": np.ones((2, 3), np.complex64),
    "image": np.zeros((1, 28, 28, 3), np.uint8),
    "huge": np.full((1, 4), 1e308),
    "empty": np.zeros((2, 0)),
    "nothing": np.zeros((0, 3)),
    "text": np.array(["one", "two\x1b[2J\n"]),
    "bytes": np.array([b"\xff"]),
    "time": np.array(["2026-01-01"], "datetime64[s]"),
    "structured": np.array([(1, 2.0)], "i4,f8"),
    "all nan": np.full((1, 3), np.nan),
    "long": np.array([1.5], np.longdouble),
}


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("unicode", [True, False])
def test_values_of_every_kind(runs, unicode):
    board = quiet()
    for seed in range(runs):
        with ConsoleSink(f"{seed}", dashboard=board) as sink:
            for name, values in STRANGE.items():
                sink.write(Records({name: Entries(values)}))
    rows = {row.name: row for row in board.snapshot().rows}
    parts = {"complex/real", "complex/imag", "complexes/real", "complexes/imag"}
    assert set(rows) == (set(STRANGE) | parts) - {"complex", "complexes", "nothing"}
    assert rows["uint64"].mean == pytest.approx(2**64 - 1)
    assert rows["complex/imag"].mean == 2
    assert rows["fp8"].mean == pytest.approx((1.5 + 448) / 2)
    assert rows["image"].shape == (28, 28, 3)
    assert rows["huge"].mean == 1e308
    assert rows["half"].odd == {"inf": runs}
    lines = _view.table(board.snapshot, "title", 140, 60, unicode)
    text = "\n".join(line.plain for line in lines)
    assert "\x1b" not in text
    assert "[28,28,3]" in text
    assert unicode or text.isascii()
    assert "\n" not in _view.line(board.snapshot, "title", unicode)


def test_masked_entries_do_not_count():
    board = quiet()
    sink = ConsoleSink(dashboard=board)
    mask = np.array([[True, False], [True, True], [False, False]])
    values = np.array([[1.0, 99.0], [3.0, 5.0], [99.0, 99.0]])
    sink.write(Records({"x": Entries(values, {"step": np.arange(3)}, mask)}))
    row = only_row(board)
    assert (row.mean, row.std, row.steps, row.trend) == (4.0, 1.0, (1, 1), [1.0, 4.0])


def test_the_last_entry_is_masked_in_part():
    """The mean, the range and the step are those of the lanes that logged it."""
    board = quiet()
    mask = np.array([[True, True, True], [False, True, True]])
    values = np.array([[1.0, 2.0, 6.0], [99.0, 3.0, 7.0]])
    steps = np.array([[0, 0, 0], [50, 10, 20]])
    ConsoleSink(dashboard=board).write(Records({"x": Entries(values, {"step": steps}, mask)}))
    row = only_row(board)
    assert (row.mean, row.std, row.least, row.greatest) == (5.0, 2.0, 3.0, 7.0)
    assert (row.steps, row.trend) == ((20, 20), [3.0, 5.0])


def test_many_masked_arrays_are_taken_block_by_block(monkeypatch):
    """Blocks of two rows, and one row that is left over."""
    monkeypatch.setattr(_digest, "_BLOCK", 6)
    random = np.random.default_rng(0)
    values, mask = random.normal(size=(5, 3)), random.random((5, 3)) < 0.6
    mask[:, 0] |= ~mask.any(axis=1)
    board = quiet()
    ConsoleSink(dashboard=board).write(Records({"x": Entries(values, mask=mask)}))
    expected = [own[there].mean() for own, there in zip(values, mask, strict=True)]
    np.testing.assert_allclose(only_row(board).trend, expected)


def test_one_number_beside_what_is_not_finite_has_a_spread():
    board = quiet()
    for seed, value in enumerate([2.0, math.nan]):
        ConsoleSink(f"{seed}", dashboard=board).write(Records({"x": entries([value])}))
    assert (only_row(board).mean, only_row(board).std) == (2.0, 0.0)
    alone = quiet()
    ConsoleSink(dashboard=alone).write(Records({"x": entries([2.0])}))
    assert only_row(alone).std is None


def test_a_trend_is_cut_into_parts_of_equal_length():
    trend = RunningTrend()
    trend.add(np.arange(8.0), at=0)
    assert trend.means(3) == [0.5, 3.0, 6.0]


# ---- how far, how fast, how long


def test_runs_at_different_places():
    """The time that remains is that of the slowest; steps are those of runs that still run."""
    clock = Clock()
    board = quiet(_clock=clock)
    sinks = {total: ConsoleSink(f"{total}", dashboard=board, total=total) for total in (100, 50)}
    done = ConsoleSink("done", dashboard=board, total=7)
    done.write(Records({"x": entries([1.0], 6)}))
    done.close()
    for step in range(10):
        clock.now += 1.0
        for sink in sinks.values():
            sink.write(Records({"x": entries([1.0], step)}))
    now = board.snapshot()
    assert now.remaining == pytest.approx(90.0)
    assert (now.steps, now.total) == ((9, 9), 100)
    assert now.share == pytest.approx((10 + 10 + 7) / 157)


def test_time_goes_on_with_another_run():
    clock = Clock()
    board = quiet(_clock=clock)
    with board:
        ConsoleSink("one", dashboard=board).close()
        clock.now = 5.0
        two = ConsoleSink("two", dashboard=board)
        clock.now = 8.0
        assert board.snapshot().elapsed == 8.0
        two.close()


def test_speed_and_remaining_time():
    clock = Clock()
    board = quiet(total=1000, _clock=clock)
    sinks = [ConsoleSink(f"seed-{seed}", dashboard=board) for seed in range(4)]
    for step in range(100):
        clock.now = 10 + step * 0.1
        for sink in sinks:
            sink.write(Records({"x": entries([1.0], step)}))
    now = board.snapshot()
    assert now.rate == pytest.approx(10.0)
    assert now.remaining == pytest.approx(90.0)
    assert (now.steps, now.total, now.share) == ((99, 99), 1000, 0.1)
    assert now.elapsed == pytest.approx(19.9)
    clock.now += 1000  # it hangs: the speed goes down, the time up
    assert board.snapshot().rate < 1
    assert board.snapshot().remaining > 9000


def test_speed_in_bursts_and_without_steps():
    clock = Clock()
    board = quiet(total=400, _clock=clock)
    sink = ConsoleSink(dashboard=board)
    for burst in range(3):
        clock.now = 5.0 * (burst + 1)
        sink.write(Records({"x": Entries(np.zeros(100))}))
        now = board.snapshot()
        assert (now.counted, now.steps) == (False, (100 * (burst + 1),) * 2)
        assert now.rate == pytest.approx(20.0)
        assert now.remaining == pytest.approx((300 - 100 * burst) / 20)
    assert "entry 300 / 400  20.0 entries/s" in _view.line(board.snapshot, "t")


def test_time_stands_still_at_the_end():
    clock = Clock()
    board = quiet(_clock=clock)
    sink = ConsoleSink(dashboard=board)
    clock.now = 61.0
    sink.close()
    clock.now = 1e6
    assert board.snapshot().elapsed == 61.0
    assert board.snapshot().remaining is None


def test_steps_of_other_kinds():
    for steps in (np.array([0.25]), np.array(["a"]), np.array([np.nan]), np.zeros((1, 0))):
        board = quiet(total=10)
        ConsoleSink(dashboard=board).write(Records({"x": Entries(np.ones(1), {"step": steps})}))
        assert only_row(board).mean == 1.0
        _view.table(board.snapshot, "t", 80, 20)
