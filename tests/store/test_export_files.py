"""The files of an export, and exports of any entries."""

# ruff: noqa: F401, F811  (fixtures are imported)

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sawlog import store
from sawlog.errors import (
    ArgumentError,
    DamagedStoreError,
    MissingPackageError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreNotFoundError,
    StorePermissionError,
    UnknownNameError,
)
from sawlog.records import Entries
from sawlog.store._views._export import export
from sawlog.testing import sample
from tests.thorough import often

from .export_stores import ARROW, read_arrow, read_jsonl, run

SRC = Path(__file__).parents[2] / "src"

# -- files ----------------------------------------------------------------------------------------


KINDS = [*ARROW, "csv", "jsonl", "safetensors"]


@pytest.mark.parametrize("kind", KINDS)
def test_existing_files_are_kept(tmp_path, run, kind):
    target = tmp_path / f"out.{kind}"
    target.write_text("mine")
    with pytest.raises(StoreExistsError, match=r"exists already.*overwrite=True"):
        export(run, target, names="loss")
    assert target.read_text() == "mine"
    assert export(run, str(target), names="loss", overwrite=True) == [target]
    assert target.read_bytes()[:4] != b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"run", target.name}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_came_meanwhile_is_kept(tmp_path, run, kind):
    target = tmp_path / f"out.{kind}"
    with pytest.raises(StoreExistsError, match="exists already"):
        export(run, target, names="loss", progress=lambda *_: target.write_text("mine"))
    assert target.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"run", target.name}


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_of_a_failure(tmp_path, run, kind, monkeypatch):
    target = tmp_path / f"out.{kind}"
    target.write_text("mine")

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(run, target, names="loss", progress=stop, overwrite=True)
    errors = {errno.ENOSPC: StoreFullError, errno.EACCES: StorePermissionError}
    for number, kind_of_error in errors.items():
        error = OSError(number, "no")

        def fail(_, error=error):
            raise error

        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(kind_of_error, match=r"failed: no\. The store is untouched.*Hint"):
            export(run, target, names="loss", overwrite=True)
    assert target.read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"run", target.name}


@pytest.mark.parametrize("kind", KINDS)
def test_progress(tmp_path, run, kind):
    told = []
    export(run, tmp_path / "out", format=kind, progress=lambda *x: told.append(x), budget=3000)
    done, totals = zip(*told, strict=True)
    assert len(set(totals)) == 1
    assert totals[0] >= 100 * (4 * 8 + 8 + 8 + 8)
    assert len(done) > 2
    assert list(done) == sorted(done)
    assert done[-1] == totals[0]


def test_a_full_disk_and_a_folder_that_cannot_be_made(tmp_path, run):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"Exporting to .* failed"):
        export(run, tmp_path / "file" / "out.csv", names="loss")
    code = f"""
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
from sawlog.errors import StoreFullError
from sawlog.store._views._export import export
for kind in {KINDS!r}:
    try:
        export({str(run)!r}, {str(tmp_path)!r} + f"/full/out.{{kind}}", names="loss")
    except StoreFullError as error:
        print(kind, "Hint" in str(error))
"""
    assert run_python(code).split() == [word for kind in KINDS for word in (kind, "True")]
    assert list((tmp_path / "full").iterdir()) == []


def run_python(code):
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["grad", "loss"])
def test_damage_is_never_exported(tmp_path, kind, name):
    values = np.arange(2000.0)
    with store.create(tmp_path / "run") as writer:
        writer.append(np.arange(2000), {"grad": values})
        writer.extend({"loss": values}, step=np.arange(2000))
        writer.extend({"rare": values[::7]}, step=np.arange(2000)[::7] + 3)
    [segment] = (tmp_path / "run" / "segments").iterdir()
    data = bytearray(segment.read_bytes())
    start = safetensors_start(data, name) + 8 * 1234
    data[start] ^= 1
    segment.write_bytes(data)
    names = [name] if name == "grad" else ["rare", "loss"]  # joined, so looked up row by row
    with pytest.raises(DamagedStoreError, match=rf"{segment.name}.*'{name}'"):
        export(tmp_path / "run", tmp_path / f"out.{kind}", names=names)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def safetensors_start(data, name):
    """Where a tensor begins in the bytes of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    return 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]


def test_arguments_are_checked(tmp_path, run):
    with pytest.raises(ArgumentError, match=r"does not say a format.*\.parquet"):
        export(run, tmp_path / "out.xlsx")
    with pytest.raises(ArgumentError, match=r"does not say a format"):
        export(run, tmp_path / "folder")
    with pytest.raises(ArgumentError, match=r"`format` must be one of 'parquet'"):
        export(run, tmp_path / "out", format="excel")
    with pytest.raises(UnknownNameError, match=r"'los'.*'loss'"):
        export(run, tmp_path / "out.csv", names=["los"])
    with pytest.raises(ArgumentError, match="names is empty"):
        export(run, tmp_path / "out.csv", names=[])
    with pytest.raises(ArgumentError, match="`budget` must be a positive number of bytes"):
        export(run, tmp_path / "out.csv", names="loss", budget=0)
    with pytest.raises(ArgumentError, match="inside the store"):
        export(run, run / "segments" / "out.csv", names="loss")
    with pytest.raises(ArgumentError, match="inside the store"):
        export(run, run, format="csv")
    with pytest.raises(ArgumentError, match="long=True is for tables"):
        export(run, tmp_path / "out.safetensors", long=True)
    with pytest.raises(StoreNotFoundError):
        export(tmp_path / "nothing", tmp_path / "out.csv")
    (tmp_path / "is.csv").mkdir()
    with pytest.raises(ArgumentError, match="does not say a format"):
        export(run, tmp_path / "is.csv", names="loss")
    store.create(tmp_path / "new").close()
    with pytest.raises(ArgumentError, match="it has no logs yet"):
        export(tmp_path / "new", tmp_path / "out.csv")
    assert {path.name for path in tmp_path.iterdir()} == {"run", "new", "is.csv"}
    assert export(run, tmp_path / "data.txt", names="loss", format="jsonl")[0].name == "data.txt"
    assert export(run, tmp_path / "x.NDJSON", names="loss")[0].read_text().startswith('{"step"')


def test_a_reader_stays_open(tmp_path, run):
    with store.open(run) as reader:
        export(reader, tmp_path / "out.csv", names="loss")
        assert reader.count("loss") == 100


def test_packages_are_asked_for_by_name(tmp_path, run, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"Parquet needs.*'pyarrow'.*sawlog\[arrow\]"):
        export(run, tmp_path / "out.parquet", names="loss")
    with pytest.raises(MissingPackageError, match=r"Arrow needs"):
        export(run, tmp_path / "out.arrow", names="loss")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_text_and_safetensors_need_numpy_only(tmp_path, run):
    code = f"""
import sys
for name in ("pyarrow", "pandas", "polars", "torch", "jax"):
    sys.modules[name] = None
from sawlog.store._views import _frames
from sawlog.store._views._export import export
for kind in ("csv", "jsonl", "safetensors"):
    print(export({str(run)!r}, {str(tmp_path)!r} + f"/out.{{kind}}", names="loss")[0].name)
"""
    assert run_python(code).split() == ["out.csv", "out.jsonl", "out.safetensors"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["arrow", "safetensors"])
@pytest.mark.parametrize("name", ["rows", "entries"])
def test_memory_is_bounded(tmp_path, kind, name):
    with store.create(tmp_path / "run", segment_bytes=16 << 20) as writer:
        for number in range(5):
            numbers = np.arange(number * 4000, (number + 1) * 4000)
            values = np.full((4000, 1024), number, np.float32)
            if name == "rows":
                writer.append(numbers, {"rows": values})
            else:
                writer.extend({"entries": values}, step=numbers)
                writer.log({"rare": number}, step=int(numbers[0]))
    code = f"""
import pyarrow
from sawlog.store._views._export import export
peak = 0
def now():
    with open("/proc/self/status") as file:
        lines = [line.split() for line in file if line.startswith(("RssAnon", "RssFile"))]
    return sum(int(line[1]) for line in lines) >> 10
def watch(*_):
    global peak
    peak = max(peak, now())
before = now()
export({str(tmp_path / "run")!r}, {str(tmp_path / f"out.{kind}")!r}, budget=6 << 20, progress=watch)
print(peak - before)
"""
    assert int(run_python(code)) < 40  # of 80 MiB


# -- any entries ----------------------------------------------------------------------------------


axis = st.lists(st.integers(0, 5), max_size=8)


@settings(max_examples=often(12, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.dictionaries(st.sampled_from("abc"), axis, min_size=1),
    seed=st.integers(0, 9),
    small=st.booleans(),
)
def test_every_entry_is_in_every_form_once(tmp_path_factory, steps, seed, small):
    folder = tmp_path_factory.mktemp("entries")
    expected = []
    with store.create(folder / "run", segment_bytes=50 if small else 1 << 20) as writer:
        for name, at in steps.items():
            values = sample("int32", (len(at),), seed)
            mask = sample("bool", (len(at),), seed)
            entries = Entries(values, {"step": np.array(at, np.int64)}, mask)
            writer.write({name: entries})
            for step, value, there in zip(at, values.tolist(), mask.tolist(), strict=True):
                expected.append((name, step, value if there else None))
    shown = sorted(map(str, (row for row in expected if row[2] is not None)))
    files = {}
    for long in (False, True):
        for kind in ("parquet", "arrow", "jsonl"):
            [path] = export(folder / "run", folder / f"{long}.{kind}", long=long, budget=100)
            rows = read_jsonl(path) if kind == "jsonl" else read_arrow(path).to_pylist()
            files[long, kind] = rows
    for (long, kind), rows in files.items():
        if long:
            found = [(row["name"], row["step"], row["value"]) for row in rows]
            assert found == expected, kind
        else:
            cells = [(n, row["step"], row[n]) for row in rows for n in steps if row[n] is not None]
            assert sorted(map(str, cells)) == shown, kind
            assert len(rows) == sum(
                max(at.count(step) for at in steps.values()) for step in range(6)
            )
