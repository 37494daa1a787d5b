"""Whether a store is being written: by programs that are killed, and read by others."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import sawlog.store
from sawlog.inspect import _activity, writer_activity
from sawlog.store._disk import LocalDisk, _locks
from sawlog.store._disk._local import _File
from sawlog.store._format import _writer_notes
from sawlog.store._format._writer_notes import HeldNote, WriterNote
from sawlog.store._maintenance._remove import InUse
from tests.store.processes import PATIENCE, environment

OPEN = """
import os, sys, time, sawlog.store
writer = sawlog.store.create({path!r}, exists="append", interval=None)
if {logs}:
    writer.log({{"x": 1.0}}, step=0)
    writer.flush()
{more}
print(os.getpid(), flush=True)
time.sleep(1000)
"""
FORK = """
if not os.fork():
    time.sleep(1000)
"""


class Program:
    """A program that writes to a store, until it is killed."""

    def __init__(self, path, logs=True, more=""):
        code = OPEN.format(path=str(path), logs=logs, more=more)
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert int(self.process.stdout.readline()) == self.process.pid

    def kill(self):
        self.process.kill()
        self.process.wait(PATIENCE)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with its children
        self.process.wait(PATIENCE)
        self.process.stdout.close()


@pytest.fixture
def program(tmp_path):
    started = []

    def start(*args, **options):
        started.append(Program(tmp_path / "s", *args, **options))
        return started[-1]

    yield start
    for each in started:
        each.end()


def state(path):
    return writer_activity(path).state


def files(path):
    """All that a change of any file would change."""
    found = {}
    for folder, _, names in os.walk(path):
        for place in (folder, *(os.path.join(folder, name) for name in names)):
            status = os.lstat(place)
            found[place] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


@pytest.mark.parametrize("logs", [True, False])
def test_a_program_that_was_killed_does_not_write(program, tmp_path, logs):
    running = program(logs)
    before = files(tmp_path)
    assert state(tmp_path / "s") == "writing"
    os.kill(running.process.pid, signal.SIGSTOP)
    assert state(tmp_path / "s") == "writing"  # it may go on at any time
    assert files(tmp_path) == before
    running.kill()
    assert state(tmp_path / "s") == "unfinished"  # at once
    assert files(tmp_path) == before
    with sawlog.store.open(tmp_path / "s", "append"):
        assert state(tmp_path / "s") == "writing"
    assert state(tmp_path / "s") == "closed"


def test_a_child_does_not_stand_in_for_a_killed_program(program, tmp_path):
    running = program(more=FORK)
    assert state(tmp_path / "s") == "writing"
    running.kill()
    deadline = time.monotonic() + PATIENCE
    while state(tmp_path / "s") != "unfinished":  # a child first runs a moment after the fork
        assert time.monotonic() < deadline
    sawlog.store.create(tmp_path / "s", exists="replace").close()  # nor does it keep the store


def test_a_child_does_not_release_what_its_program_holds(tmp_path):
    with sawlog.store.create(tmp_path / "s") as writer:
        child = os.fork()
        if not child:
            try:
                writer.abort()
                del writer
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert state(tmp_path / "s") == "writing"


def test_a_program_that_publishes_all_the_time_is_never_taken_for_dead(tmp_path):
    """Its file is replaced between any two looks at it."""
    disk = LocalDisk(tmp_path)
    disk.make(("writers", "tmp", "segments"))
    note, stop = HeldNote(disk, "a"), threading.Event()
    note.put(WriterNote(0, False, False, 0.0), hold=True)

    def publish():
        number = 0
        while not stop.is_set():
            number += 1
            note.put(WriterNote(number, False, False, 0.0), hold=True)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        assert {state(tmp_path) for _ in range(500)} == {"writing"}
    finally:
        stop.set()
        thread.join(PATIENCE)
    note.release()
    assert state(tmp_path) == "unfinished"


def test_a_file_that_is_replaced_after_it_was_opened_is_read_again(tmp_path, monkeypatch):
    disk = LocalDisk(tmp_path)
    disk.make(("writers", "tmp", "segments"))
    note = HeldNote(disk, "a")
    note.put(WriterNote(0, False, False, 0.0), hold=True)
    held, looks = _File.held, []

    def replaced_before_the_look(file):
        looks.append(1)
        if len(looks) < 4:
            note.put(WriterNote(len(looks), False, False, 0.0), hold=True)
        return held(file)

    monkeypatch.setattr(_File, "held", replaced_before_the_look)
    assert state(tmp_path) == "writing"
    assert len(looks) == 4


@pytest.mark.parametrize(
    ("lock_is_seen", "system", "silent", "expected"),
    [
        (True, "other", 10_000, "writing"),  # a lock that is held tells the truth from anywhere
        (False, "other", 0, "writing"),  # that of another machine may not be seen here
        (False, "other", 601, "unfinished"),
        (False, "", 0, "writing"),  # a system without a name
        (False, "", 601, "unfinished"),
        (None, "here", 0, "writing"),  # the disk has no locks for who looks
        (None, "here", 601, "unfinished"),
        (False, "here", 0, "unfinished"),
    ],
)
def test_what_is_known_of_another_machine(
    tmp_path, monkeypatch, lock_is_seen, system, silent, expected
):
    monkeypatch.setattr(_writer_notes, "system_id", lambda: system)
    writer = sawlog.store.create(tmp_path / "s")
    monkeypatch.setattr(_writer_notes, "system_id", lambda: "" if system == "" else "here")
    monkeypatch.setattr(_File, "held", lambda file: lock_is_seen)
    now = time.time()
    monkeypatch.setattr(_activity.time, "time", lambda: now + silent)
    assert state(tmp_path / "s") == expected
    monkeypatch.undo()
    writer.close()


def test_a_disk_without_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(_locks, "fcntl", None)
    writer = sawlog.store.create(tmp_path / "s")
    (report,) = (tmp_path / "s" / "writers").iterdir()
    assert json.loads(report.read_text()) == {"published": 0, "closed": False}
    assert state(tmp_path / "s") == "writing"
    os.utime(report, (time.time() - 601,) * 2)
    assert state(tmp_path / "s") == "unfinished"
    writer.close()


def test_a_writer_beyond_those_that_are_marked_is_silent_before_it_counts_as_dead(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(InUse, "_most", InUse._count)
    writer = sawlog.store.create(tmp_path / "s")
    (report,) = (tmp_path / "s" / "writers").iterdir()
    assert "held" not in json.loads(report.read_text())
    assert state(tmp_path / "s") == "writing"
    writer.close()
    assert state(tmp_path / "s") == "closed"


@pytest.mark.parametrize("held", [None, 1, True, [], {}, "", "x" * 60_000])
def test_a_report_of_a_stranger(tmp_path, held):
    sawlog.store.create(tmp_path / "s").close()
    (report,) = (tmp_path / "s" / "writers").iterdir()
    report.write_text(json.dumps({"published": 0, "closed": False, "held": held}))
    assert state(tmp_path / "s") == "writing"
    os.utime(report, (time.time() - 601,) * 2)
    assert state(tmp_path / "s") == "unfinished"


def test_an_interrupted_start_holds_nothing(tmp_path, monkeypatch):
    def interrupted(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("sawlog.store._disk._local.AsideFile.commit", interrupted)
    disk = LocalDisk(tmp_path)
    disk.make(("writers", "tmp"))
    note = HeldNote(disk, "a")
    open_before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt):
        note.put(WriterNote(0, False, False, 0.0), hold=True)
    note.release()
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert os.listdir(tmp_path / "tmp") == os.listdir(tmp_path / "writers") == []
