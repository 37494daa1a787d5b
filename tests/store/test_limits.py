"""Memory, open files, queues, threads and processes: what a store may take, and what not."""

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sawlog import store
from sawlog.errors import DamagedStoreError, StoreWriteError
from sawlog.store._disk import _local
from tests.store.processes import PATIENCE


def fill(path, rows, width, segment_bytes, dtype=np.float32):
    with store.create(path, segment_bytes=segment_bytes) as writer:
        for start in range(0, rows, 1000):
            ids = np.arange(start, min(rows, start + 1000))
            values = np.repeat(ids[:, None], width, axis=1).astype(dtype)
            writer.append(ids, {"row": values})
    return path


def run(code, *args):
    """A fresh process, as memory is counted for all of it."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


PEAK = """
import re, sys, numpy as np, sawlog.store

def status(what):
    return int(re.search(what + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10

reader = sawlog.store.open(sys.argv[1])
reader.ids()
before, budget, kept = status("VmRSS"), int(sys.argv[2]), None
for block in reader.blocks(budget=budget):
    kept = kept or block
    assert block.values["row"][:, 0].tolist() == block.ids.tolist()
    block.values["row"].sum()
assert kept.values["row"][0, 0] == kept.ids[0]
print(status("VmHWM") - before)
"""


@pytest.mark.parametrize("budget", [4 << 20, 24 << 20])
def test_a_scan_stays_within_its_budget(tmp_path, budget):
    path = fill(tmp_path / "store", 30_000, 1024, 32 << 20)
    assert store.open(path).nbytes > 4 * budget
    peak = int(run(PEAK, path, budget))
    assert peak < budget + (6 << 20), f"{peak / 2**20:.1f} MiB"


WRITES = """
import re, sys, numpy as np, sawlog.store
from sawlog.store._format import _segment_writer

def status(what):
    return int(re.search(what + r":\\s+(\\d+) kB", open("/proc/self/status").read())[1]) << 10

slow = _segment_writer.UnpublishedSegment.commit
def commit(self):
    import time
    time.sleep(0.05)
    slow(self)
_segment_writer.UnpublishedSegment.commit = commit
batch = np.ones((500, 1024), np.float32)
with sawlog.store.create(sys.argv[1], segment_bytes=4 << 20) as writer:
    before = status("VmRSS")
    for i in range(60):
        writer.append(np.arange(500 * i, 500 * i + 500), {"row": batch})
print(status("VmHWM") - before)
"""


def test_a_slow_disk_slows_the_program_down_and_memory_does_not_grow(tmp_path):
    peak = int(run(WRITES, tmp_path / "store"))
    assert peak < 4 * (4 << 20) + (8 << 20), f"{peak / 2**20:.1f} MiB for 117 MiB of rows"
    assert store.open(tmp_path / "store").count("row") == 30_000


FILES = """
import resource, sys, numpy as np, sawlog.store
resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
reader = sawlog.store.open(sys.argv[1])
ids = np.random.default_rng(0).permutation(reader.ids())
assert np.array_equal(reader.gather(ids)["row"][:, 0], ids)
assert sum(len(block) for block in reader.blocks()) == len(ids)
assert sawlog.store.verify(sys.argv[1]).ok
print(len(reader.segments))
"""


def test_more_segments_than_a_process_may_have_open(tmp_path):
    with store.create(tmp_path / "store", interval=None, merge=False) as writer:
        for number in range(450):
            writer.append([number], {"row": np.full((1, 4), number)})
            if number % 2:
                writer.flush()
        for number in range(450, 700):
            writer.append([number], {"row": np.full((1, 4), number)})
            writer.flush()
    assert int(run(FILES, tmp_path / "store")) == 475


FORGOTTEN = """
import sys, numpy as np, sawlog.store
writer = sawlog.store.create(sys.argv[1], interval=None)
writer.log({"loss": 0.5}, step=3)
writer.append(["a"], {"row": np.ones((1, 2))})
{end}
"""


INTERRUPTED = """
from sawlog.store._writing import _pipeline
def interrupted(self, flush=_pipeline.Pipeline.flush):
    _pipeline.Pipeline.flush = flush
    raise KeyboardInterrupt
_pipeline.Pipeline.flush = interrupted
del writer
"""


@pytest.mark.parametrize("end", ["", "del writer", "raise SystemExit(0)", INTERRUPTED])
def test_a_forgotten_writer_publishes(tmp_path, end):
    run(FORGOTTEN.replace("{end}", end), tmp_path / "store")
    reader = store.open(tmp_path / "store")
    assert reader.ids() == ["a"]
    assert reader.entries("loss").values.tolist() == [0.5]


def test_no_thread_is_left_behind(tmp_path):
    before = threading.active_count()
    fill(tmp_path / "store", 5000, 8, 10_000)
    for _ in store.open(tmp_path / "store").blocks(budget=5000):
        break
    gc.collect()
    assert threading.active_count() == before


def test_many_threads_share_a_writer(tmp_path):
    def work(number):
        for start in range(0, 200, 10):
            ids = 200 * number + start + np.arange(10)
            writer.append(ids, {"row": np.repeat(ids[:, None], 3, axis=1)})
            writer.log({"loss": float(number)}, step=start)

    with store.create(tmp_path / "store", segment_bytes=3000) as writer:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader = store.open(tmp_path / "store")
    assert sorted(reader.ids()) == list(range(1000))
    assert reader.gather(np.arange(1000))["row"][:, 2].tolist() == list(range(1000))
    assert np.unique(reader.read("loss"), return_counts=True)[1].tolist() == [20] * 5


class Broken:
    """A disk that fails for a while."""

    def __init__(self, monkeypatch):
        self.broken = True
        write = _local._Upload.write

        def fails(upload, *data):
            if self.broken:
                raise OSError(5, os.strerror(5))
            write(upload, *data)

        monkeypatch.setattr(_local._Upload, "write", fails)


def test_a_failure_in_the_background_is_told_and_nothing_is_given_up(tmp_path, monkeypatch):
    disk = Broken(monkeypatch)
    writer = store.create(tmp_path / "store", segment_bytes=200, interval=None)
    accepted = []

    def append_many():
        for number in range(1000):
            writer.append([number], {"row": np.full((1, 4), number)})
            accepted.append(number)

    with pytest.raises(StoreWriteError, match="segments: Input/output error"):
        append_many()
    assert 0 < len(accepted) < 50
    for call in (writer.flush, writer.close, lambda: writer.log({"x": 1})):
        with pytest.raises(StoreWriteError, match="Input/output error"):
            call()
    assert store.open(tmp_path / "store").ids("row").tolist() == []
    disk.broken = False
    writer.flush()
    assert store.open(tmp_path / "store").ids().tolist() == accepted
    writer.append([-1], {"row": np.full((1, 4), -1)})
    writer.close()
    assert store.open(tmp_path / "store").ids().tolist() == [*accepted, -1]


def test_a_call_is_taken_whole_even_if_the_disk_fails_on_the_way(tmp_path, monkeypatch):
    disk = Broken(monkeypatch)
    writer = store.create(tmp_path / "store", segment_bytes=200, interval=None)
    ids = np.arange(300)
    assert writer.append(ids, {"row": np.repeat(ids[:, None], 4, axis=1)}) == 300
    with pytest.raises(StoreWriteError):
        writer.flush()
    disk.broken = False
    writer.close()
    assert store.open(tmp_path / "store").read("row")[:, 3].tolist() == ids.tolist()


def test_a_segment_that_leads_nowhere_is_missing(tmp_path):
    path = fill(tmp_path / "store", 10, 2, 1 << 20)
    segment = store.open(path).segments[0].path
    segment.unlink()
    segment.symlink_to(tmp_path / "nowhere")
    with pytest.raises(DamagedStoreError, match=f"{segment.name}: missing"):
        store.open(path)


# ---- torch


def labels(number):
    return (number * 7) % 10


@pytest.mark.parametrize(
    ("workers", "as_tensors"),
    [(0, True), (0, False), pytest.param(2, True, marks=pytest.mark.thorough)],
)
def test_a_data_loader(tmp_path, workers, as_tensors):
    with store.create(tmp_path / "store", segment_bytes=2000) as writer:
        ids = np.arange(100)
        grads = np.repeat(ids[:, None], 6, axis=1).reshape(100, 2, 3).astype(np.float32)
        writer.append(ids, {"grad": grads, "label": labels(ids)})
    data = store.open(tmp_path / "store").dataset(torch=as_tensors)
    loader = DataLoader(
        data,
        batch_size=8,
        shuffle=True,
        num_workers=workers,
        multiprocessing_context=multiprocessing.get_context("spawn") if workers else None,
    )
    seen = []
    for batch in loader:
        assert batch["grad"].dtype == torch.float32
        assert batch["grad"].shape[1:] == (2, 3)
        assert torch.equal(batch["grad"][:, 1, 2], batch["id"].float())
        assert torch.equal(batch["label"], labels(batch["id"]))
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(100))
    assert len(data) == 100
    with pytest.raises(IndexError):
        data[100]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_tensors_of_small_floats(tmp_path, name):
    import ml_dtypes

    values = np.array([[1.5, -2.0], [0.25, 448.0]]).astype(getattr(ml_dtypes, name))
    with store.create(tmp_path / "store") as writer:
        writer.append(["a", "b"], {"x": values})
    row = store.open(tmp_path / "store").dataset(torch=True)[1]
    assert row["id"] == "b"
    assert row["x"].dtype == getattr(torch, name)
    assert row["x"].float().tolist() == values[1].astype(np.float32).tolist()


def test_readers_and_datasets_go_to_other_processes(tmp_path):
    import pickle

    path = fill(tmp_path / "store", 20, 2, 1 << 20)
    data = pickle.loads(pickle.dumps(store.open(path).dataset()))
    assert data[3]["row"].tolist() == [3, 3]
    writer = store.open(path, "append")
    with pytest.raises(TypeError, match="append"):
        pickle.dumps(writer)
    writer.close()


def test_live_reading(tmp_path):
    path = tmp_path / "store"
    with store.create(path, interval=0.05) as writer:
        writer.log({"loss": 0.0}, step=0)
        reader, deadline = store.open(path), time.monotonic() + PATIENCE
        while not reader.refresh() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert reader.entries("loss").values.tolist() == [0.0]
        writer.log({"loss": 1.0}, step=1)
        writer.flush()
        assert reader.count("loss") == 1
        assert reader.refresh()
        assert reader.entries("loss").steps["step"].tolist() == [0, 1]
        assert not reader.refresh()


def test_replaced_rows_are_gone_everywhere(tmp_path):
    path = tmp_path / "store"
    with store.create(path, duplicates="replace", segment_bytes=300) as writer:
        for turn in range(3):
            for start in (0, 10, 20):
                ids = np.arange(start, start + 15)
                writer.append(ids, {"row": ids * 10 + turn})
    reader = store.open(path)
    before = {
        int(i): int(v) for b in reader.blocks(budget=100) for i, v in zip(*pair(b), strict=True)
    }
    assert before == {i: i * 10 + 2 for i in range(35)}
    assert reader.count("row") == len(reader.ids()) == len(reader.read("row")) == 35
    size = reader.nbytes
    store.compact(path, grace=0)
    assert not any(Path(path, "replaced").iterdir())
    reader.refresh()
    assert reader.nbytes < size
    after = reader.gather(np.arange(35))["row"]
    assert after.tolist() == [i * 10 + 2 for i in range(35)]
    assert sum(chunk.rows for s in reader.segments for chunk in s.chunks) == 35


def pair(block):
    return block.ids, block.values["row"]
