"""What the console knows and shows: its numbers against numpy, its text at every size."""

import io
import math
import os
import re
import subprocess
import sys
import threading
import types

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress

from sawlog.errors import ArgumentError
from sawlog.records import Entries, Records
from sawlog.sinks import ConsoleSink, Dashboard
from sawlog.sinks._console import _dashboard, _digest, _output, _view
from sawlog.sinks._console._running_trend import BINS, RunningTrend
from sawlog.sinks._console._runs import RunStatus
from sawlog.testing import SinkContract
from tests.thorough import examples

from ._terminal import SOURCE, Seen
from .failing import wait_until


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def quiet(**options):
    """A dashboard that shows nothing until its end, and then a line that nobody reads."""
    return Dashboard(file=io.StringIO(), every=1000, **options)


def entries(values, start=0, axis="step", mask=None):
    values = np.asarray(values)
    return Entries(values, {axis: np.arange(start, start + len(values))}, mask)


def only_row(board):
    (row,) = board.snapshot().rows
    return row


def shown_by(console):
    """The lines on a screen that got all that a console has written."""
    seen = Seen(0, console.file.getvalue().replace("\n", "\r\n").encode(), 80, 30)
    return seen.text.splitlines()


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


def test_how_runs_ended():
    board = quiet()
    with board:
        sinks = [ConsoleSink(f"seed-{seed}", dashboard=board) for seed in range(4)]
        sinks[1].fail()
        for sink in sinks[:3]:
            sink.close()
        runs = board.snapshot().runs
        assert runs[RunStatus.FINISHED] == ["seed-0", "seed-2"]
        assert (runs[RunStatus.FAILED], runs[RunStatus.RUNNING]) == (["seed-1"], ["seed-3"])
        line = _view.line(board.snapshot, "t")
        assert "4 runs: 1 running, 2 finished, 1 failed (seed-1)" in line
        sinks[3].close()


def test_names_of_runs():
    board = quiet()
    one, two = ConsoleSink("a", dashboard=board), ConsoleSink("a", dashboard=board)
    assert (one.name, two.name) == ("a", "a (2)")
    one.write(Records({"x": entries([1.0, 2.0])}))
    one.close()
    again = ConsoleSink("a", dashboard=board)
    again.write(Records({"x": entries([3.0], 2)}))
    assert only_row(board).trend == [1.0, 2.0, 3.0]
    again.close()
    two.close()


def test_names_that_are_chosen():
    board = quiet(names=["loss", "eval/*"])
    with ConsoleSink(dashboard=board) as sink:
        for name in ("lr", "eval/b", "loss", "loss/x"):
            sink.write(Records({name: entries([1.0])}))
    assert [row.name for row in board.snapshot().rows] == ["eval/b", "loss"]


# ---- at every size


@pytest.fixture(scope="module")
def crowd():
    """200 runs and 500 names, not all of them in every run."""
    board = quiet(total=50)
    names = [f"encoder/layers/{i}/日本/attention/norm" for i in range(500)]
    records = {name: entries(np.arange(3.0)) for name in names}
    sinks = [ConsoleSink(f"seed-{seed}", dashboard=board) for seed in range(200)]
    sinks[0].write(Records(records))
    for sink in sinks[1:]:
        sink.write(Records({name: records[name] for name in names[:50]}))
    for sink in sinks[:100]:
        sink.fail()
        sink.close()
    yield board
    for sink in sinks:
        sink.close()


@pytest.mark.parametrize("width", [1, 7, 20, 40, 80, 200])
@pytest.mark.parametrize("height", [1, 3, 6, 10, 50])
def test_it_fits(crowd, width, height):
    lines = _view.table(crowd.snapshot, "title", width, height)
    assert 1 <= len(lines) <= height
    assert all(cell_len(line.plain) <= width for line in lines)
    if width >= 40 and height >= 10:
        shown = sum(line.plain.startswith("enc") for line in lines)
        assert shown >= 3
        assert lines[-1].plain == f"… {500 - shown} more names not shown"
    if width >= 80 and height >= 10:
        assert "100 running, 100 failed (seed-0, seed-1, seed-2, +97)" in lines[0].plain


def test_a_crowd_on_one_line(crowd):
    assert _view.line(crowd.snapshot, "t").endswith("(+488 more names)")


# ---- quiet lines


def test_lines_come_every_so_often():
    file = io.StringIO()
    board = Dashboard("mnist", file=file, every=0.01)
    sinks = [ConsoleSink(f"seed-{seed}", dashboard=board) for seed in range(2)]
    for step in range(3):
        before = len(file.getvalue())
        for seed, sink in enumerate(sinks):
            sink.write(Records({"loss": entries([float(seed + step)], step)}))
        wait_until(lambda seen=before: len(file.getvalue()) > seen)
    for sink in sinks:
        sink.close()
    *during, last = file.getvalue().splitlines()
    assert len(during) >= 3
    assert all(line.startswith("mnist  ") for line in during)
    assert re.fullmatch(
        r"mnist  2 runs finished  step 2  \S+ steps/s  elapsed 0:\d\d:\d\d  loss=2.500±0.50", last
    )


def test_nothing_new_is_no_line():
    file = io.StringIO()
    with ConsoleSink(file=file, every=0.01) as sink:
        sink.write(Records({"x": entries([1.0])}))
        wait_until(lambda: "x=1" in file.getvalue())
        threading.Event().wait(0.05)
    lines = file.getvalue().splitlines()
    assert 2 <= len(lines) <= 3  # one more where it came before the write
    assert len(set(lines)) == len(lines)


def test_lines_in_ascii():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    board = Dashboard("größe", file=file)
    for value in (1.0, 2.0):
        ConsoleSink(dashboard=board).write(Records({"é": entries([value])}))
    board._abandon()
    text = raw.getvalue().decode("ascii")
    assert r"\xe9=1.500+/-0.50" in text
    assert "2 runs left open" in text


def test_a_pipe_that_breaks_is_no_end():
    class Broken(io.StringIO):
        def write(self, text):
            raise OSError("no space left")

    sink = ConsoleSink(file=Broken())
    sink.write(Records({"x": entries([1.0])}))
    with pytest.warns(RuntimeWarning, match="no space left"):
        sink.close()
    assert sink.closed


def test_beside_a_bar_of_rich():
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Progress(console=console) as progress:
        progress.add_task("mine", total=3)
        with ConsoleSink(console=console, live=True) as sink:
            sink.write(Records({"x": entries([1.0])}))
            assert isinstance(sink.dashboard._display, _output.Lines)
    assert "x=1.000" in console.file.getvalue()


def test_two_dashboards_on_one_terminal():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=30)
    one, two = (ConsoleSink(title=title, console=console, live=True) for title in ("one", "two"))
    one.write(Records({"x": entries([1.0])}))
    two.write(Records({"y": entries([2.0])}))
    screen = one.dashboard._display
    assert screen is two.dashboard._display
    screen._tick()
    live = shown_by(console)
    assert [line.split()[:2] for line in live if line.startswith("──")] == [
        ["──", "one"],
        ["──", "two"],
    ]
    one.close()
    two.close()
    end = shown_by(console)
    assert end[0].startswith("── one  run finished ─")
    assert re.match(r"x +1\.000 +0 +▄", end[3])
    assert end[4].startswith("── two  run finished ─")
    assert re.match(r"y +2\.000 +0 +▄", end[7])
    assert end[8:] == []
    assert screen._live is None
    assert not console._live_stack


def test_forced_colours_are_no_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ConsoleSink(file=io.StringIO()) as sink:
        assert isinstance(sink.dashboard._display, _output.Lines)


# ---- its life


def test_one_table_for_runs_one_after_the_other():
    file = io.StringIO()
    with Dashboard(file=file) as board:
        for seed in range(3):
            with ConsoleSink(f"seed-{seed}", dashboard=board) as sink:
                sink.write(Records({"x": entries([1.0])}))
        assert file.getvalue() == ""
    assert len(file.getvalue().splitlines()) == 1
    assert "3 runs finished" in file.getvalue()


def test_a_sink_that_is_forgotten():
    file = io.StringIO()
    board = Dashboard(file=file, every=0.02)
    sink = ConsoleSink(dashboard=board)
    del sink
    wait_until(lambda: "run left open" in file.getvalue())
    wait_until(lambda: board._display is None)
    assert id(board) not in _dashboard._open_dashboards


def test_no_thread_is_left():
    before = {thread.name for thread in threading.enumerate()}
    with ConsoleSink(file=io.StringIO()):
        assert "sawlog-console" in {thread.name for thread in threading.enumerate()}
    assert {thread.name for thread in threading.enumerate()} <= before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forked_processes_and_pipes():
    """A child of a fork prints as usual, and only the parent says how it ended; nothing is raised
    where the reader of a pipe has gone."""
    program = """
import os, sys, numpy as np
from sawlog.records import Entries, Records
from sawlog.sinks import ConsoleSink
sink = ConsoleSink()
sink.write(Records({"x": Entries(np.ones(1))}))
if os.fork() == 0:
    print("child")
    sys.exit()
os.wait()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],  # of forking threads
        capture_output=True,
        text=True,
        env={"PYTHONPATH": SOURCE, "PYTHONIOENCODING": "utf-8"},
    )
    assert done.stderr == ""
    first, second = done.stdout.splitlines()
    assert first == "child"
    assert re.fullmatch(r"sawlog  run left open .* x=1\.000", second)


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": 0},
        {"total": 1.5},
        {"refresh": 0},
        {"every": math.nan},
        {"names": 3},
        {"name": 3},
        {"title": 3},
        {"dashboard": "x"},
        {"dashboard": Dashboard(), "refresh": 3},
        {"console": Console(), "file": io.StringIO()},
    ],
)
def test_arguments_that_make_no_sense(wrong):
    with pytest.raises(ArgumentError):
        ConsoleSink(**wrong)


def test_in_a_notebook(monkeypatch):
    """IPython is none of our packages, so a stand-in for its display is looked at."""
    pages = []

    class Handle:
        def update(self, page):
            pages.append(page)

    def display(page, display_id):
        pages.append(page)
        return Handle()

    fake = types.SimpleNamespace(display=display, HTML=str)
    monkeypatch.setattr(_output.importlib, "import_module", {"IPython.display": fake}.get)
    monkeypatch.setattr(_output.importlib.util, "find_spec", lambda name: name)
    console = Console(force_jupyter=True)
    with ConsoleSink("<seed>", console=console, refresh=50) as sink:
        sink.write(Records({"loss": entries([0.5])}))
        wait_until(lambda: len(pages) >= 2)
    assert len(pages) >= 3
    assert pages[-1].startswith("<pre")
    assert "0.5000" in pages[-1]
    assert "&lt;seed&gt;" in pages[-1]
    assert "finished" in pages[-1]


def test_writing_is_cheap_and_safe_while_it_is_drawn():
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=20)
    board = Dashboard(console=console, live=True, refresh=100)
    with board:

        def work(seed):
            with ConsoleSink(f"seed-{seed}", dashboard=board) as sink:
                for step in range(200):
                    sink.write(Records({f"x{step % 7}": entries([float(step)], step)}))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = board.snapshot().rows
    assert sorted(row.name for row in rows) == [f"x{i}" for i in range(7)]
    assert all((row.runs, row.std) == (4, 0.0) for row in rows)
    assert {int(row.mean) for row in rows} == set(range(193, 200))
