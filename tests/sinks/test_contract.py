"""Every sink keeps the contract that ships with the package, and the contract is a real one."""

import subprocess
import sys
from pathlib import Path

import pytest

from sawlog import sinks, store
from sawlog.records import Entries, Records
from sawlog.sinks import (
    Async,
    CsvSink,
    Every,
    Fanout,
    JsonlSink,
    MemorySink,
    Prefix,
    Reduce,
    Select,
    StoreSink,
    Timeout,
)
from sawlog.testing import SinkContract

from .reading import from_csv, from_jsonl, from_records


class TestMemorySink(SinkContract):
    def make(self, path):
        return MemorySink()

    def read(self, sink, path):
        return from_records(sink.records)


class TestJsonlSink(SinkContract):
    resumes = True

    def make(self, path):
        return JsonlSink(path / "folder" / "run.jsonl")

    def read(self, sink, path):
        return from_jsonl(sink.path)


class TestCsvSink(SinkContract):
    resumes = True

    def make(self, path):
        return CsvSink(path / "folder" / "run.csv")

    def read(self, sink, path):
        return from_csv(sink.path)


class TestStoreSink(SinkContract):
    resumes = True

    def make(self, path):
        return StoreSink(path / "run", meta={"seed": 1, "sizes": (1, 2)})

    def read(self, sink, path):
        with store.open(sink.path) as reader:
            return from_records(reader.records())


class _AroundMemory(SinkContract):
    def make(self, path):
        self.memory = MemorySink()
        return self.around(self.memory)

    def read(self, sink, path):
        return from_records(self.memory.records)


class TestTimeout(_AroundMemory):
    def around(self, memory):
        return Timeout(lambda: memory, 60)


class TestFanout(_AroundMemory):
    def around(self, memory):
        return Fanout(MemorySink(), memory)


class TestEvery(_AroundMemory):
    def around(self, memory):
        return Every(memory, 1)


class TestSelect(_AroundMemory):
    def around(self, memory):
        return Select(memory, exclude="nothing")


class TestPrefix(_AroundMemory):
    def around(self, memory):
        return Prefix(memory, "run/")

    def read(self, sink, path):
        return {n.removeprefix("run/"): e for n, e in super().read(sink, path).items()}


class TestReduce(_AroundMemory):
    def around(self, memory):
        return Reduce(memory, 1, {"x*": "last", "*": "mean"})


class TestReduceLast(_AroundMemory):
    def around(self, memory):
        return Reduce(memory, 1, "last")


class TestAsync(_AroundMemory):
    def around(self, memory):
        return Async(memory, queue=3)


class TestAll(_AroundMemory):
    """All of them, one around the other."""

    def around(self, memory):
        return Async(Fanout(Select(Every(Reduce(Prefix(memory, ""), 1, "last"), 1), "*")), queue=1)


# ---- the contract can fail


class _Forgetful(MemorySink):
    def _write(self, records):
        super()._write(Records({n: Entries(e.values[:-1]) for n, e in records.items()}))


class _Keeping(MemorySink):
    """Holds on to the arrays."""

    def _write(self, records):
        for name, entries in records.items():
            self._parts.setdefault(name, []).append(entries)


class _Endless(MemorySink):
    def close(self):
        pass


class _Hasty(MemorySink):
    """Takes the first names of what it refuses."""

    def write(self, records):
        for name in records:
            super().write(Records({name: records[name]}))


class _Blind(MemorySink):
    """Looks at no mask."""

    def _write(self, records):
        super()._write(Records({n: Entries(e.values, e.steps) for n, e in records.items()}))


FAULTS = {
    "test_entries_arrive_in_order": _Forgetful,
    "test_arrays_may_be_changed_afterwards": _Keeping,
    "test_writing_after_the_end": _Endless,
    "test_as_a_context_manager": _Endless,
    "test_refused_as_a_whole": _Hasty,
    "test_masked_entries_were_not_logged": _Blind,
}


@pytest.mark.parametrize("test", FAULTS)
def test_the_contract_can_fail(tmp_path, test):
    class Broken(SinkContract):
        def make(self, path):
            return FAULTS[test]()

        def read(self, sink, path):
            return from_records(sink.records)

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(Broken(), test)(tmp_path)
    TestMemorySink.test_nothing(TestMemorySink(), tmp_path)


def test_every_sink_is_under_contract():
    tested = {name for name in globals() if name.startswith("Test")}
    for name in ("MemorySink", "JsonlSink", "CsvSink", "StoreSink", "Fanout", "Every", "Select"):
        assert f"Test{name}" in tested
    assert {"TestPrefix", "TestReduce", "TestAsync"} <= tested


def test_import_brings_no_framework():
    code = (
        "import sys, sawlog.sinks; "
        "print([m for m in ('jax', 'torch', 'pytest', 'pyarrow') if m in sys.modules])"
    )
    source = str(Path(sinks.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": source}
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_only_what_is_claimed_is_tested():
    class Numbers(SinkContract):
        arrays = False

    assert (Numbers.test_arrays_arrive, Numbers.test_resuming) == (None, None)
    assert callable(TestJsonlSink.test_arrays_arrive)
    assert callable(TestJsonlSink.test_resuming)
