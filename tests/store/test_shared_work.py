"""Claims of work: one holder at a time, free after a kill, gone when the work is done."""

import os
import signal
import subprocess
import sys

import pytest

from sawlog import store
from sawlog.errors import StoreWriteError
from sawlog.store._disk import _local
from sawlog.store._writing._shared_work import SharedWork


@pytest.fixture
def path(tmp_path):
    store.create(tmp_path / "work").close()
    return tmp_path / "work"


def nothing(name):
    return False


def files(path):
    return [each.name for each in (path / "tmp").iterdir()]


def test_a_claim_has_one_holder(path):
    names = ["a", "b", "c"]
    with SharedWork(path) as one, SharedWork(path) as other:
        assert one.take(names, 2, nothing) == ["a", "b"]
        assert one.take(names[:2], 2, nothing) == []
        assert other.take(names, 2, nothing) == ["c"]
    with SharedWork(path) as third:
        assert third.take(names, 9, nothing) == names
        third.done()
        assert files(path) == []


def test_work_that_is_done_is_not_claimed(path):
    """Another process may finish between two looks: what counts is the look with the claim."""
    asked = []

    def is_done(name):
        asked.append(name)
        return name == "a"

    with SharedWork(path) as claims:
        assert claims.take(["a", "b"], 1, is_done) == ["b"]
        assert asked == ["a", "b"]
        assert len(files(path)) == 1  # of b
        with SharedWork(path) as other:
            assert other.take(["b", "a"], 2, nothing) == ["a"]


def test_work_that_failed_is_free(path):
    with SharedWork(path) as claims:
        claims.take(["a"], 1, nothing)  # and left without done()
    with SharedWork(path) as claims:
        assert claims.take(["a"], 1, nothing) == ["a"]


def test_the_claim_of_a_killed_process_is_free(path):
    program = (
        "import pathlib, sys, time\n"
        "from sawlog.store._writing._shared_work import SharedWork\n"
        "claims = SharedWork(pathlib.Path(sys.argv[1]))\n"
        "print(claims.take(['a'], 1, lambda name: False), flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "['a']\n"
        with SharedWork(path) as claims:
            assert claims.take(["a"], 1, nothing) == []
            os.kill(other.pid, signal.SIGKILL)
            other.wait()
            assert claims.take(["a"], 1, nothing) == ["a"]


def test_a_disk_without_locks_lets_all_claim(path, monkeypatch):
    monkeypatch.setattr(_local, "lock", lambda descriptor, exclusive=True: None)
    with SharedWork(path) as one, SharedWork(path) as other:
        assert one.take(["a"], 1, nothing) == other.take(["a"], 1, nothing) == ["a"]


def test_a_store_that_is_gone(path):
    with (
        SharedWork(path.parent / "missing") as claims,
        pytest.raises(StoreWriteError, match="sharing"),
    ):
        claims.take(["a"], 1, nothing)
