"""Processes that write, compact and get killed, for `test_crash.py`.

`python -m tests.store.crash_writer FD` imports what it needs once and then forks a child for each
job that comes through the socket FD, so that a process to kill costs milliseconds. Every job comes
with a pipe, through which its child reports, one JSON object a line, unbuffered: what has been
reported before a kill can be read after it.
"""

import dataclasses
import json
import os
import resource
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from sawlog import store

from .numbers import grads, write_numbers

warnings.simplefilter("error")

CHANGES = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which rows and entries a store is to have, and in which way they are written."""

    seed: int
    rows: int = 600
    entries: int = 300
    width: int = 3
    kind: str = "int"
    segment_bytes: int = 600
    flush: float = 0.3

    @property
    def ids(self):
        """All ids in the order in which they are wanted."""
        numbers = np.random.default_rng(self.seed).permutation(self.rows)
        return numbers if self.kind == "int" else [f"row {number}" for number in numbers.tolist()]

    def numbers(self, ids):
        if self.kind == "int":
            return np.asarray(ids, np.int64)
        return np.array([int(id.removeprefix("row ")) for id in ids], np.int64)

    def values(self, ids):
        numbers = self.numbers(ids)
        return {"grad": grads(numbers, self.width), "label": numbers * 7}


def losses(numbers):
    return np.asarray(numbers, np.int64) ** 2 / 3


class Report:
    def __init__(self, fd):
        self._fd = fd

    def __call__(self, **event):
        os.write(self._fd, (json.dumps(event) + "\n").encode())


def failure(error):
    kinds = [kind.__name__ for kind in type(error).__mro__]
    return {"kinds": kinds, "text": str(error), "trace": traceback.format_exc()[-6000:]}


# ---- the jobs


def fill(tell, path, plan):
    """Write what is missing of a plan, and report after each flush how much is durable by now."""
    plan = Plan(**plan)
    random = np.random.default_rng(time.time_ns())
    with store.create(
        path, exists="append", segment_bytes=plan.segment_bytes, interval=None
    ) as writer:
        todo = writer.missing(plan.ids)
        with store.open(path) as reader:
            entry = reader.count("loss") if "loss" in reader.names else 0
        tell(todo=len(todo), entry=entry)
        row = 0
        while row < len(todo) or entry < plan.entries:
            ids = todo[row : row + int(random.integers(1, 8))]
            if len(ids):
                assert writer.append(ids, plan.values(ids)) == len(ids)
            row += len(ids)
            steps = np.arange(entry, min(entry + int(random.integers(1, 6)), plan.entries))
            if len(steps) == 1:
                writer.log({"loss": losses(steps)[0]}, step=steps[0])
            elif len(steps):
                writer.extend({"loss": losses(steps)}, step=steps)
            entry += len(steps)
            if random.random() < plan.flush:
                writer.flush()
                tell(rows=row, entries=entry)
    tell(rows=row, entries=entry)


def compact(tell, path, times=1):
    for _ in range(times):
        store.compact(path)
        tell(compacted=True)


def write(tell, path, start, stop, at, every=5):
    """Write the numbers from start to stop, a flush every few, beginning at a moment."""
    wait(at)
    with store.create(path, exists="append", segment_bytes=2000, interval=None) as writer:
        for begin in range(start, stop, every):
            write_numbers(writer, range(begin, min(begin + every, stop)))
            writer.flush()
            tell(flushed=min(begin + every, stop))


def share(tell, path, who, rows, at):
    """One of several writers of a store that begin at the same moment: rows, and a series."""
    wait(at)
    with store.create(path, exists="append", segment_bytes=2000, interval=None) as writer:
        for begin in range(0, rows, 4):
            ids = np.arange(begin, min(begin + 4, rows)) * 4 + who
            writer.append(ids, {"grad": grads(ids), "label": ids * 7})
            writer.append([f"row {id}" for id in ids], {"text": ids})
            writer.extend({"who": np.full(len(ids), who), "number": ids}, step=ids // 4)
            if begin % 12 == 0:
                writer.flush()


def declare(tell, path, who, dtype, names, at):
    """Declare new names at a moment, at the same time as others do."""
    with store.open(path, "append", interval=None) as writer:
        wait(at)
        for name in names:
            writer.append([who], {f"row {name}": np.full((1, 2), who, dtype)})
            writer.log({f"entry {name}": np.full(2, who, dtype)}, step=who)


def churn(tell, path, seconds):
    """Compact again and again."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        store.compact(path)
        tell(compacted=True)
        time.sleep(0.01)


def limited(tell, path, ending):
    """Write against a limit on the size of files; then lift it and flush, or close."""
    writer = store.create(path, segment_bytes=16 << 10, queue=2, interval=None)
    put = Put(writer)
    for _ in range(5):
        put(10)
    writer.flush()
    tell(durable=put.rows)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        tell(failures=fail_until(put, 200), rows=put.rows)
        if ending == "close":
            tell(close=attempt(writer.close), again=attempt(writer.close))
            return
        tell(flush=attempt(writer.flush))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finish(tell, writer, put)


def full_disk(tell, path, filler):
    """Write until the disk is full; then remove a large file and flush."""
    Path(filler).write_bytes(bytes(600 << 10))
    writer = store.create(path, segment_bytes=16 << 10, queue=2, interval=None)
    put = Put(writer)
    put(10)
    writer.flush()
    tell(durable=put.rows)
    tell(failures=fail_until(put, 2000), rows=put.rows)
    tell(flush=attempt(writer.flush))
    with store.open(path) as reader:
        tell(readable=len(reader.ids()))
    Path(filler).unlink()
    finish(tell, writer, put)
    check_put(path, put.rows)


class Put:
    """Appends rows with the next ids; each has a kilobyte."""

    def __init__(self, writer):
        self.writer, self.rows = writer, 0

    def __call__(self, count):
        ids = np.arange(self.rows, self.rows + count)
        self.writer.append(ids, {"grad": grads(ids, 256)})
        self.rows += count


def attempt(call, *args):
    try:
        call(*args)
    except Exception as error:
        return failure(error)
    return None


def fail_until(put, most):
    """Append until it fails, and once more."""
    for _ in range(most):
        if first := attempt(put, 10):
            return [first, attempt(put, 10)]
    return []


def finish(tell, writer, put):
    """The obstacle is gone: what was accepted becomes durable, what was refused is missing."""
    wanted = np.arange(put.rows + 50)
    writer.flush()
    left = writer.missing(wanted)
    with store.open(writer.path) as reader:
        published = len(reader.ids())
    tell(left=left.tolist(), published=published)
    if len(left):
        writer.append(left, {"grad": grads(left, 256)})
    writer.close()
    put.rows = len(wanted)
    tell(finished=len(wanted))


def check_put(path, rows):
    with store.open(path) as reader:
        ids = np.arange(rows)
        found = sorted(reader.ids().tolist())
        lost, extra = sorted(set(ids.tolist()) - set(found)), sorted(set(found) - set(ids.tolist()))
        assert found == ids.tolist(), f"{rows=} {lost=} {extra=} found={len(found)}"
        assert np.array_equal(reader.gather(ids)["grad"], grads(ids, 256))
    assert store.verify(path).ok


def as_nobody(tell, path):
    """Without the right to write: reading works, everything else says so."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        os.mkdir(Path(path) / "probe")
    except PermissionError:
        tell(refused=True)
    else:
        os.rmdir(Path(path) / "probe")
        tell(refused=False)
        return

    def append():
        with store.open(path, "append") as writer:
            write_numbers(writer, [100])

    def create():
        with store.create(Path(path).parent / "new") as writer:
            write_numbers(writer, [0])

    tell(append=attempt(append), create=attempt(create), compact=attempt(store.compact, path))
    with store.open(path) as reader:
        tell(read=reader.ids("grad").tolist(), ok=store.verify(path).ok)


def forked(tell, path):
    """A writer used in a child of the process that opened it."""
    writer = store.create(path, interval=None)
    write_numbers(writer, range(3))
    if (child := os.fork()) == 0:
        tell(append=attempt(write_numbers, writer, [3]), flush=attempt(writer.flush))
        os._exit(0)
    os.waitpid(child, 0)
    write_numbers(writer, range(3, 6))
    writer.close()


JOBS = {
    job.__name__: job
    for job in (
        *(fill, compact, write, share, declare, churn),
        *(limited, full_disk, as_nobody, forked),
    )
}


# ---- the server


def wait(moment):
    while time.time() < moment:
        pass


def die_before(number):
    """Kill this process right before it changes the file system for the given time (from 1)."""
    changes = 0

    def audit(event, args):
        nonlocal changes
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        if event in CHANGES or (event == "open" and isinstance(args[0], str) and args[2] & writes):
            changes += 1
            if changes == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)


def run(message, fd):
    tell = Report(fd)
    tell(pid=os.getpid())
    try:
        request = json.loads(message)
        if request["die_before"]:
            die_before(request["die_before"])
        JOBS[request["job"]](tell, **request["args"])
        tell(done=True)
    except BaseException as error:
        tell(failure=failure(error))
    os._exit(0)


def serve(fd):
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not message:
            control.close()
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            run(message, fds[0])
        os.close(fds[0])


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2].encode(), 1)
    serve(int(sys.argv[1]))
