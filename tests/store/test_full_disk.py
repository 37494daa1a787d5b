"""A full disk, and folders that cannot be written."""

# ruff: noqa: F401, F811  (fixtures are imported)

import json
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from sawlog import store

from .crash_stores import path, server
from .crash_writer import check_put
from .numbers import write_numbers
from .processes import ROOT, environment

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL"),
    pytest.mark.long,
]


def assert_write_error(failure):
    assert failure is not None, "no error"
    assert "StoreWriteError" in failure["kinds"], failure["trace"]


def merged(events):
    return {key: value for event in events for key, value in event.items()}


def test_limit_on_the_size_of_files_lifted(server, path):
    said = merged(server.start("limited", path=path, ending="flush").rest())
    assert len(said["failures"]) == 2
    for failure in (*said["failures"], said["flush"]):
        assert_write_error(failure)
    assert said["durable"] == 50
    assert set(said["left"]) >= set(range(said["rows"], said["finished"]))
    assert said["published"] == said["finished"] - len(said["left"])
    assert [id for id in said["left"] if id < said["rows"]] == [], "accepted, and then lost"
    check_put(path, said["finished"])


def test_limit_on_the_size_of_files_until_the_end(server, path):
    said = merged(server.start("limited", path=path, ending="close").rest())
    for failure in (*said["failures"], said["close"]):
        assert_write_error(failure)
    with store.open(path) as reader:
        ids = reader.ids()
        assert set(ids.tolist()) >= set(range(said["durable"]))
        check_put(path, len(ids))


def test_full_disk(tmp_path):
    """On a file system of a megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    request = {
        "job": "full_disk",
        "die_before": 0,
        "args": {"path": str(disk / "store"), "filler": str(disk / "filler")},
    }
    script = 'mount -t tmpfs -o size=1m tmpfs "$1" || exit 77; shift; exec "$@"'
    python = [sys.executable, "-m", "tests.store.crash_writer", "run", json.dumps(request)]
    alone = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh", str(disk)]
    if shutil.which("unshare") is None:
        pytest.skip("no unshare")
    done = subprocess.run(
        [*alone, *python], cwd=ROOT, env=environment(), capture_output=True, text=True
    )
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip(f"may not mount: {done.stderr}")
    said = merged([json.loads(line) for line in done.stdout.splitlines()])
    assert "failure" not in said, said["failure"]["trace"]
    for failure in (*said["failures"], said["flush"]):
        assert_write_error(failure)
        assert "StoreFullError" in failure["kinds"], failure["trace"]
    assert said["readable"] >= said["durable"]
    assert [id for id in said["left"] if id < said["rows"]] == [], "accepted, and then lost"
    assert said["done"] is True


def test_read_only_folder(server):
    """Not below tmp_path: that one is closed to other users, and root may write everywhere."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with store.create(path) as writer:
            write_numbers(writer, range(5))
        store.open(path).close()
        readable(Path(folder))
        said = merged(server.start("as_nobody", path=path).rest())
        writable(Path(folder))
    if not said["refused"]:
        pytest.skip("this user may write everywhere")
    for what in ("append", "create"):
        assert said[what] is not None, f"{what} worked"
        assert "StorePermissionError" in said[what]["kinds"], said[what]["trace"]
        assert Path(folder).name in said[what]["text"]
    if said["compact"] is not None:  # one segment: there may be nothing to do
        assert "StorePermissionError" in said["compact"]["kinds"], said["compact"]["trace"]
    assert said["read"] == list(range(5))
    assert said["ok"] is True


def readable(folder):
    for file in (folder, *folder.rglob("*")):
        file.chmod(0o555 if file.is_dir() else 0o444)


def writable(folder):
    for file in (folder, *folder.rglob("*")):
        file.chmod(stat.S_IRWXU)
