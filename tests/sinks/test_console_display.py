"""What the console shows: its text at every size, and its life in a program."""

import io
import math
import os
import re
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress

from sawlog.errors import ArgumentError
from sawlog.records import Records
from sawlog.sinks import ConsoleSink, Dashboard
from sawlog.sinks._console import _dashboard, _output, _view
from sawlog.sinks._console._runs import RunStatus

from ._terminal import SOURCE, Seen
from .console_helpers import entries, only_row, quiet
from .failing import wait_until


def shown_by(console):
    """The lines on a screen that got all that a console has written."""
    seen = Seen(0, console.file.getvalue().replace("\n", "\r\n").encode(), 80, 30)
    return seen.text.splitlines()


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
