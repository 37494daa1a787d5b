"""What was accepted is on disk soon, without being asked; and that costs little."""

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import time
import types

import numpy as np
import pytest

from sawlog import store
from sawlog.store._format._segment_writer import UnpublishedSegment
from sawlog.store._maintenance._merge_small import FAN, SmallSegmentMerger
from sawlog.store._writing import _pipeline
from tests.thorough import often

SLOW = """
    import sys, time
    from sawlog import store
    writer = store.create(sys.argv[1])
    for step in range(5):
        writer.log({"loss": step / 10}, step=step)
    print("logged", flush=True)
    time.sleep(600)
"""


def wait_for(happened):
    deadline = time.monotonic() + 120
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def steps(path):
    with store.open(path) as reader:
        return reader.entries("loss").steps["step"].tolist() if "loss" in reader.names else []


def test_a_slow_run_that_is_killed(tmp_path):
    path = tmp_path / "s"
    command = [sys.executable, "-c", textwrap.dedent(SLOW), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"logged\n"
        wait_for(lambda: len(steps(path)) == 5)
        os.kill(process.pid, signal.SIGKILL)
    assert steps(path) == [0, 1, 2, 3, 4]
    assert store.verify(path).ok


def test_the_default_is_a_second():
    assert inspect.signature(store.Writer).parameters["interval"].default == 1.0


def test_publishing_takes_a_small_part_of_the_time(tmp_path, monkeypatch):
    """On a slow disk, with the shortest interval: as often as a twentieth of the time allows."""
    commit = UnpublishedSegment.commit

    def slow(self):
        time.sleep(0.05)
        commit(self)

    monkeypatch.setattr(UnpublishedSegment, "commit", slow)
    with store.create(tmp_path / "s", interval=0.0) as writer:
        began, number = time.monotonic(), 0
        while time.monotonic() - began < 1.2 or writer.published == 0:
            writer.log({"loss": 0.5}, step=number)
            number += 1
            time.sleep(0.001)
        # two may be on their way when the first one is done
        assert writer.published <= 2 + (time.monotonic() - began) / (20 * 0.05)
    with store.open(tmp_path / "s") as reader:
        assert reader.count("loss") == number


@pytest.mark.parametrize(
    ("writing", "takes", "pause"),
    [(0.0, 0.5, 10.0), (0.0, 1.5, 30.0), (0.0, 60.0, 30.0), (0.5, 0.25, 15.0), (0.5, 0.0, 10.0)],
)
def test_the_next_publication_waits_twenty_times_as_long(
    tmp_path, monkeypatch, writing, takes, pause
):
    """As writing and renaming take together; but at most half a minute, however slow the disk."""
    now = [1000.0]
    write, commit = UnpublishedSegment.write, UnpublishedSegment.commit

    def slow_write(self):
        now[0] += writing
        write(self)

    def slow(self):
        now[0] += takes
        commit(self)

    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=time.sleep)
    monkeypatch.setattr(_pipeline, "time", clock)
    monkeypatch.setattr(UnpublishedSegment, "write", slow_write)
    monkeypatch.setattr(UnpublishedSegment, "commit", slow)
    with store.create(tmp_path / "s", interval=None) as writer:
        writer.log({"loss": 0.5}, step=0)
        writer.flush()
        assert writer._pipeline._not_before == 1000 + writing + takes + pause


@pytest.mark.parametrize(("columns", "asks"), [(8, True), (40, False)])
def test_only_segments_below_half_their_size_are_worth_merging(
    tmp_path, monkeypatch, columns, asks
):
    asked = []
    monkeypatch.setattr(SmallSegmentMerger, "merge", lambda self: asked.append(1) or 0)
    with store.create(tmp_path / "s", segment_bytes=400, interval=None) as writer:
        for number in range(FAN):
            writer.append([number], {"x": np.zeros((1, columns))})  # of eight bytes each
            writer.flush()
        if asks:
            wait_for(lambda: asked)
    assert asked == [1] * asks


def test_a_writer_merges_its_small_segments(tmp_path):
    """While a reader is open, which goes on."""
    flushes = often(400, 10_000)
    reader = None
    with store.create(tmp_path / "s") as writer:
        for number in range(flushes):
            writer.append([number], {"x": np.full((1, 3), float(number))})
            writer.log({"loss": 0.5 * number}, step=number)
            writer.flush()
            if number == 20:
                reader = store.open(tmp_path / "s")
        wait_for(lambda: len(os.listdir(tmp_path / "s" / "segments")) < 100)
    assert reader.gather([0, 20])["x"][:, 0].tolist() == [0.0, 20.0]
    reader.refresh()
    assert reader.ids().tolist() == list(range(flushes))
    assert np.array_equal(reader.entries("loss").values, 0.5 * np.arange(flushes))
    assert len(reader.segments) < 100
    assert store.verify(tmp_path / "s").ok
