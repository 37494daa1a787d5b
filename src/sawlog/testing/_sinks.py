"""The contract of sinks, as in ``sawlog/sinks/_base.py``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog.errors import SawlogError, StoreClosedError
from sawlog.records import Entries, Records

#: What arrived: for each name, its entries in order, each with its steps and its value.
Arrived = dict[str, list[tuple[dict[str, Any], Any]]]


class SinkContract:
    """Everything a sink has to do; subclass it in a test module of your own.

    The hooks are ``make(path)``, which returns a sink that writes somewhere below the folder
    ``path`` or in memory, and ``read(sink, path)``, which returns what arrived, after a flush or at
    the end: ``{"loss": [({"step": 0}, 0.5)]}``. Values are numbers, or lists of them in lists.
    Entries that are masked as a whole are not among them.

    Args:
        arrays: whether arrays can be written, not only numbers.
        resumes: whether ``make(path)`` a second time continues the existing data.
    """

    arrays = True
    resumes = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Remove the tests of features that the sink does not have."""
        super().__init_subclass__(**options)
        for claimed, test in ((cls.arrays, "test_arrays_arrive"), (cls.resumes, "test_resuming")):
            if not claimed:
                setattr(cls, test, None)

    def make(self, path: Path) -> Any:
        """Return a sink whose place is new, or, where ``resumes``, was used before."""
        raise NotImplementedError("say how to make the sink")

    def read(self, sink: Any, path: Path) -> Arrived:
        """Return what arrived. ``sink`` was flushed, or closed."""
        raise NotImplementedError("say how to read what arrived")

    def expect(self, sink: Any, path: Path, expected: Arrived) -> None:
        """Compare what arrived with what should have, NaN being equal to NaN."""
        found = {name: entries for name, entries in self.read(sink, path).items() if entries}
        assert set(found) == set(expected)
        for name, entries in expected.items():
            assert [dict(steps) for steps, _ in found[name]] == [steps for steps, _ in entries]
            for (_, one), (_, two) in zip(found[name], entries, strict=True):
                np.testing.assert_array_equal(np.asarray(one), np.asarray(two), err_msg=name)

    # -- what arrives -----------------------------------------------------------------------------

    def test_entries_arrive_in_order(self, tmp_path: Path) -> None:
        """Several writes of one and of many entries, each value with its step."""
        sink = self.make(tmp_path)
        for start, stop in ((0, 1), (1, 4), (4, 4), (4, 9)):
            sink.write(_losses(start, stop))
        sink.close()
        expected = [({"step": i}, 1 / (i + 1)) for i in range(9)]
        self.expect(sink, tmp_path, {"loss": expected})

    def test_flush_is_enough(self, tmp_path: Path) -> None:
        """After a flush everything has arrived; the sink stays usable."""
        sink = self.make(tmp_path)
        sink.write(_losses(0, 2))
        sink.flush()
        self.expect(sink, tmp_path, {"loss": [({"step": i}, 1 / (i + 1)) for i in range(2)]})
        sink.write(_losses(2, 3))
        sink.close()
        self.expect(sink, tmp_path, {"loss": [({"step": i}, 1 / (i + 1)) for i in range(3)]})

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
    def test_values_are_exact(self, tmp_path: Path, dtype: str) -> None:
        """Every digit arrives."""
        numbers = np.array([1, 1 / 3, 1e30, -1e-30, 2**24 + 1])
        values = (numbers if dtype.startswith("f") else np.array([0, -1, 2**31 - 1])).astype(dtype)
        sink = self.make(tmp_path)
        sink.write(Records({"x": Entries(values, {"step": np.arange(len(values))})}))
        sink.close()
        found = self.read(sink, tmp_path)["x"]
        assert [np.asarray(value).astype(dtype) for _, value in found] == values.tolist()

    def test_not_a_number(self, tmp_path: Path) -> None:
        """NaN and infinities are values like others."""
        values = [np.nan, np.inf, -np.inf, 0.0]
        sink = self.make(tmp_path)
        sink.write(Records({"x": Entries(np.array(values), {"step": np.arange(4)})}))
        sink.close()
        self.expect(sink, tmp_path, {"x": [({"step": i}, v) for i, v in enumerate(values)]})

    def test_names_that_come_later(self, tmp_path: Path) -> None:
        """A name, and a step axis, may appear at any time."""
        sink = self.make(tmp_path)
        sink.write(_losses(0, 2))
        sink.write(Records({"acc": Entries(np.array([0.5]), {"epoch": np.array([7])})}))
        sink.write(_losses(2, 3))
        sink.close()
        losses = [({"step": i}, 1 / (i + 1)) for i in range(3)]
        self.expect(sink, tmp_path, {"loss": losses, "acc": [({"epoch": 7}, 0.5)]})

    def test_arrays_arrive(self, tmp_path: Path) -> None:
        """Values of any shape."""
        values = np.arange(12.0).reshape(2, 3, 2)
        sink = self.make(tmp_path)
        sink.write(Records({"x": Entries(values, {"step": np.arange(2)})}))
        sink.close()
        self.expect(sink, tmp_path, {"x": [({"step": i}, v) for i, v in enumerate(values)]})

    def test_masked_entries_were_not_logged(self, tmp_path: Path) -> None:
        """An entry that is masked as a whole is not written."""
        mask = np.array([True, False, True])
        sink = self.make(tmp_path)
        sink.write(Records({"x": Entries(np.arange(3.0), {"step": np.arange(3)}, mask)}))
        sink.close()
        self.expect(sink, tmp_path, {"x": [({"step": 0}, 0.0), ({"step": 2}, 2.0)]})

    def test_nothing(self, tmp_path: Path) -> None:
        """No names, and names without entries."""
        sink = self.make(tmp_path)
        sink.write(Records())
        sink.write(_losses(0, 0))
        sink.close()
        self.expect(sink, tmp_path, {})

    def test_arrays_may_be_changed_afterwards(self, tmp_path: Path) -> None:
        """The sink keeps no references to the arrays of the caller."""
        values, steps = np.array([1.0]), np.array([0])
        sink = self.make(tmp_path)
        for i in range(3):
            values[:], steps[:] = i, i
            sink.write(Records({"x": Entries(values, {"step": steps})}))
        values[:] = steps[:] = -1
        sink.close()
        self.expect(sink, tmp_path, {"x": [({"step": i}, float(i)) for i in range(3)]})

    def test_resuming(self, tmp_path: Path) -> None:
        """Created again at the same place, it continues."""
        for start in range(3):
            sink = self.make(tmp_path)
            sink.write(_losses(start, start + 1))
            sink.close()
        self.expect(sink, tmp_path, {"loss": [({"step": i}, 1 / (i + 1)) for i in range(3)]})

    def test_threads(self, tmp_path: Path) -> None:
        """Threads may share a sink; nothing is lost, and each name keeps its order."""
        sink = self.make(tmp_path)

        def work(name: str) -> None:
            for i in range(25):
                sink.write(Records({name: Entries(np.array([i]), {"step": np.array([i])})}))

        threads = [threading.Thread(target=work, args=(f"x{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sink.close()
        each = [({"step": i}, i) for i in range(25)]
        self.expect(sink, tmp_path, {f"x{number}": each for number in range(4)})

    # -- what is refused --------------------------------------------------------------------------

    @pytest.mark.parametrize("wrong", [None, 1.0, {"x": 1.0}, {"x": np.ones(2)}])
    def test_what_are_no_records(self, tmp_path: Path, wrong: Any) -> None:
        """The error is one of sawlog's, and nothing arrives."""
        with self.make(tmp_path) as sink, pytest.raises(SawlogError):
            sink.write(wrong)
        self.expect(sink, tmp_path, {})

    def test_refused_as_a_whole(self, tmp_path: Path) -> None:
        """Where one name cannot be written, no other of the same call is."""
        things = np.array([object()])
        sink = self.make(tmp_path)
        sink.write(_losses(0, 1))
        with pytest.raises(SawlogError, match="thing"):
            sink.write(Records({**_losses(1, 2), "thing": Entries(things)}))
        sink.write(_losses(1, 2))
        sink.close()
        self.expect(sink, tmp_path, {"loss": [({"step": 0}, 1.0), ({"step": 1}, 0.5)]})

    # -- the end ----------------------------------------------------------------------------------

    def test_closing_twice(self, tmp_path: Path) -> None:
        """The second time does nothing, and what was written stays."""
        sink = self.make(tmp_path)
        sink.write(_losses(0, 1))
        sink.close()
        sink.close()
        self.expect(sink, tmp_path, {"loss": [({"step": 0}, 1.0)]})

    def test_writing_after_the_end(self, tmp_path: Path) -> None:
        """It raises, and nothing arrives."""
        sink = self.make(tmp_path)
        sink.write(_losses(0, 1))
        sink.close()
        with pytest.raises(StoreClosedError):
            sink.write(_losses(1, 2))
        self.expect(sink, tmp_path, {"loss": [({"step": 0}, 1.0)]})

    def test_as_a_context_manager(self, tmp_path: Path) -> None:
        """It closes at the end, also where the program fails, whose error it does not hide."""
        sink = self.make(tmp_path)

        def program() -> None:
            with sink as entered:
                entered.write(_losses(0, 1))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            program()
        with pytest.raises(StoreClosedError):
            sink.write(_losses(1, 2))
        self.expect(sink, tmp_path, {"loss": [({"step": 0}, 1.0)]})


def _losses(start: int, stop: int) -> Records:
    steps = np.arange(start, stop)
    return Records({"loss": Entries(1 / (steps + 1.0), {"step": steps})})
