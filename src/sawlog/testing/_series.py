"""Contract: series, whose entries have steps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog.errors import SawlogError, SchemaError
from sawlog.records import Entries, Records
from sawlog.testing._equality import assert_same
from sawlog.testing._hooks import StoreHooks


class SeriesContract(StoreHooks):
    """Entries, their steps, masks and attrs."""

    def test_log(self, path: Path) -> None:
        """One entry of each name for each call, in order."""
        with self.create(path) as writer:
            for step in range(5):
                writer.log(
                    {"loss": np.float32(1 / (step + 1)), "grad": np.full(2, step)}, step=step
                )
                if step == 2:
                    writer.flush()
        with self.open(path) as reader:
            assert reader.names == ("loss", "grad")
            assert reader.count("loss") == reader.count("grad") == 5
            assert_same(reader.read("loss"), (1 / np.arange(1.0, 6)).astype(np.float32))
            assert_same(reader.entries("grad").values, np.repeat(np.arange(5), 2).reshape(5, 2))
            assert_same(reader.entries("grad").steps["step"], np.arange(5))
            assert reader.entries("loss").mask is None

    def test_extend(self, path: Path) -> None:
        """Many entries at once are those entries one after the other, also none at all."""
        values = np.arange(10, dtype=np.float64)
        with self.create(path) as writer:
            writer.extend({"a": values[:6], "b": values[:6, None] * 2}, step=np.arange(6))
            writer.extend({"a": values[:0], "b": values[:0, None]}, step=np.arange(0))
            writer.log({"a": values[6], "b": values[6:7] * 2}, step=6)
            writer.flush()
            writer.extend({"a": values[7:], "b": values[7:, None] * 2}, step=np.arange(7, 10))
        with self.open(path) as reader:
            assert_same(reader.read("a"), values)
            assert_same(reader.read("b"), values[:, None] * 2)
            assert_same(reader.entries("b").steps["step"], np.arange(10))

    def test_step_axes(self, path: Path) -> None:
        """None, several, floating ones, and steps that are arrays themselves."""
        with self.create(path) as writer:
            for number in range(3):
                writer.log({"none": number})
                writer.log({"two": number}, epoch=number // 2, time=number / 2)
                writer.log({"lanes": [number, -number]}, step=np.array([number, number + 1]))
        with self.open(path) as reader:
            assert dict(reader.entries("none").steps) == {}
            two = reader.entries("two").steps
            assert list(two) == ["epoch", "time"]
            assert_same(two["epoch"], np.array([0, 0, 1]))
            assert_same(two["time"], np.array([0.0, 0.5, 1.0]))
            assert_same(reader.entries("lanes").steps["step"], np.array([[0, 1], [1, 2], [2, 3]]))

    def test_records(self, path: Path) -> None:
        """``write`` accepts what ``records`` returns, and the reverse."""
        given = Records(
            {
                "loss": Entries(np.array([2.0, 1.0]), {"step": np.array([0, 1])}),
                "act": Entries(
                    np.arange(6.0).reshape(3, 2),
                    {"step": np.arange(6).reshape(3, 2)},
                    np.array([[True, False], [False, True], [True, True]]),
                ),
                "plain": Entries(np.zeros((1, 2, 2), np.int8)),
            }
        )
        with self.create(path) as writer:
            writer.write(given)
            writer.append([1], {"row": np.zeros(1)})
        with self.open(path) as reader:
            found = reader.records()
            assert list(found) == list(given)
            for name, entries in given.items():
                _assert_entries(found[name], entries, name)
            assert list(reader.records(["act"])) == ["act"]
        with self.create(path.with_name("again")) as writer:
            writer.write(found)
        with self.open(path.with_name("again")) as reader:
            for name, entries in given.items():
                _assert_entries(reader.records()[name], entries, name)

    def test_masks(self, path: Path) -> None:
        """Entries with and without a mask can be mixed; without one, all were logged."""
        values = np.arange(8.0).reshape(4, 2)
        mask = np.array([[True, False], [False, False]])
        for flush in (False, True):
            place = path.with_name(f"flush-{flush}")
            with self.create(place) as writer:
                writer.extend({"x": values[:1]})
                if flush:
                    writer.flush()
                writer.write(Records({"x": Entries(values[1:3], mask=mask)}))
                if flush:
                    writer.flush()
                writer.log({"x": values[3]})
            expected = np.array([[True, True], [True, False], [False, False], [True, True]])
            self._masked(place, values, expected)
            self.compact(place)
            self._masked(place, values, expected)

    def _masked(self, path: Path, values: np.ndarray, mask: np.ndarray) -> None:
        with self.open(path) as reader:
            entries = reader.entries("x")
            assert_same(entries.values, values)
            assert entries.mask is not None
            assert_same(entries.mask, mask)

    def test_attrs(self, path: Path) -> None:
        """Attrs stay with their entries, through reopening and compaction."""
        notes: list[dict[str, Any]] = [
            {"site": "a.py:1", "tags": ["x", "y"]},
            {},
            {"deep": {"number": 1.5, "none": None, "text": "ä"}},
        ]
        with self.create(path) as writer:
            writer.write(Records({"x": Entries(np.zeros(2), attrs=notes[0])}))
            writer.extend({"x": np.zeros(1)})
        with self.open(path, "append") as writer:
            writer.write(Records({"x": Entries(np.zeros(3), attrs=notes[2])}))
        expected = [notes[0]] * 2 + [notes[1]] + [notes[2]] * 3
        for _ in range(2):
            with self.open(path) as reader:
                runs = reader.attrs("x")
                assert [dict(note) for count, note in runs for _ in range(count)] == expected
            self.compact(path)

    @pytest.mark.parametrize(
        "note",
        [{"x": np.int64(1)}, {"x": object()}, {"x": np.zeros(2)}, {"x": {1, 2}}, {1: "x"}],
        ids=["numpy number", "object", "array", "set", "key"],
    )
    def test_notes_that_json_cannot_hold(self, path: Path, note: dict[Any, Any]) -> None:
        """They are refused at once or stored exactly; the writer stays usable."""
        with self.create(path) as writer:
            writer.log({"x": 0.0})
            with contextlib.suppress(SawlogError):
                writer.write(Records({"x": Entries(np.array([-1.0]), attrs=note)}))
            writer.log({"x": 1.0})
            writer.flush()
            writer.log({"x": 2.0})
        with self.open(path) as reader:
            values = reader.read("x").tolist()
            assert [value for value in values if value >= 0] == [0, 1, 2]
            notes = [note for count, note in reader.attrs("x") for _ in range(count)]
            assert notes == [note if value < 0 else {} for value in values]

    def test_order_across_writers(self, path: Path) -> None:
        """Entries of a later writer come after all that existed when it was opened."""
        with self.create(path) as writer:
            writer.extend({"x": np.arange(3)})
        for start in range(3, 12, 3):
            with self.open(path, "append") as writer:
                writer.extend({"x": np.arange(start, start + 2)})
                writer.flush()
                writer.log({"x": start + 2})
        with self.open(path) as reader:
            assert_same(reader.read("x"), np.arange(12))
        self.compact(path)
        with self.open(path) as reader:
            assert_same(reader.read("x"), np.arange(12))

    @pytest.mark.parametrize(
        ("value", "steps"),
        [
            pytest.param(np.zeros(3), {"step": 1}, id="shape"),
            pytest.param(np.zeros(2, np.float32), {"step": 1}, id="dtype"),
            pytest.param(np.zeros(2), {}, id="no step"),
            pytest.param(np.zeros(2), {"epoch": 1}, id="another step"),
            pytest.param(np.zeros(2), {"step": 1, "epoch": 1}, id="a step more"),
            pytest.param(np.zeros(2), {"step": np.zeros(2, int)}, id="shape of the step"),
        ],
    )
    def test_schema_mismatch_of_entries(
        self, path: Path, value: np.ndarray, steps: dict[str, Any]
    ) -> None:
        """Shape, dtype and steps are fixed by the first entry; nothing of a refused call stays."""
        with self.create(path) as writer:
            writer.log({"x": np.zeros(2), "y": 0.0}, step=0)
            with pytest.raises(SchemaError, match=r"x|step"):
                writer.log({"y": 0.0, "x": value}, **steps)
        with self.open(path, "append") as writer, pytest.raises(SchemaError, match=r"x|step"):
            writer.log({"y": 0.0, "x": value}, **steps)
        with self.open(path) as reader:
            assert reader.count("x") == reader.count("y") == 1

    def test_lengths_differ(self, path: Path) -> None:
        """``extend`` needs the same number of entries for every array."""
        with self.create(path) as writer:
            with pytest.raises(SawlogError):
                writer.extend({"x": np.zeros(3), "y": np.zeros(2)}, step=np.arange(3))
            with pytest.raises(SawlogError):
                writer.extend({"x": np.zeros(3)}, step=np.arange(2))
        with self.open(path) as reader:
            assert reader.names == () or reader.count("x") == 0

    def test_a_name_is_of_one_kind(self, path: Path) -> None:
        """A name of a table cannot be logged, nor can rows be added to a series."""
        with self.create(path) as writer:
            writer.append([0], {"row": np.zeros(1)})
            writer.log({"entry": 0.0})
            with pytest.raises(SchemaError, match="row"):
                writer.log({"row": 0.0})
            with pytest.raises(SchemaError, match="entry"):
                writer.append([0], {"entry": np.zeros(1)})

    def test_rows_and_entries_side_by_side(self, path: Path) -> None:
        """A store may have both; reading one as the other raises."""
        with self.create(path) as writer:
            for number in range(4):
                writer.append([number], {"row": np.array([number])})
                writer.log({"entry": -number}, step=number)
        with self.open(path) as reader:
            assert set(reader.names) == {"row", "entry"}
            assert list(reader.records()) == ["entry"]
            assert_same(reader.read("row"), np.arange(4))
            assert_same(reader.read("entry"), -np.arange(4))
            assert list(reader.gather([2])) == ["row"]
            with pytest.raises(SawlogError, match="row"):
                reader.entries("row")
            with pytest.raises(SawlogError, match="entry"):
                reader.ids("entry")
            with pytest.raises(SawlogError, match="entry"):
                reader.gather([0], ["entry"])


def _assert_entries(found: Entries, expected: Entries, name: str) -> None:
    assert_same(found.values, expected.values, name)
    assert list(found.steps) == list(expected.steps)
    for axis, steps in expected.steps.items():
        assert_same(found.steps[axis], steps, f"{axis} of {name}")
    assert (found.mask is None) == (expected.mask is None)
    if found.mask is not None:
        assert_same(found.mask, expected.mask, f"mask of {name}")
