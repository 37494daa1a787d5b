"""Contract: tables, whose rows have example ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog.errors import (
    DuplicateIdError,
    NanError,
    SawlogError,
    SchemaError,
    UnknownNameError,
)
from sawlog.testing._equality import assert_same
from sawlog.testing._hooks import StoreHooks, as_list, names_of, rows

each_kind = pytest.mark.parametrize("kind", ["int", "str"])
nan = float("nan")


class RowContract(StoreHooks):
    """Rows, their ids, and the errors for invalid ones."""

    @each_kind
    def test_rows_round_trip(self, path: Path, kind: str) -> None:
        """Rows are read in the order written, with their ids."""
        ids = names_of([5, 3, 9, 0, 7, 8], kind)
        values = rows(6)
        with self.create(path) as writer:
            assert writer.append(ids[:4], {name: each[:4] for name, each in values.items()}) == 4
            writer.flush()
            assert writer.append(ids[4:], {name: each[4:] for name, each in values.items()}) == 2
        with self.open(path) as reader:
            assert reader.names == ("grad", "label")
            assert as_list(reader.ids()) == as_list(ids)
            assert reader.count("grad") == len(reader.ids("label")) == 6
            for name, expected in values.items():
                assert_same(reader.read(name), expected, name)

    def test_kinds_of_ids(self, path: Path) -> None:
        """Integer ids are read as int64, strings as a list of str."""
        with self.create(path) as writer:
            writer.append(np.array([1, 2], np.uint8), {"x": np.zeros(2)})
            writer.append(np.array(["a", "b"]), {"y": np.zeros(2)})
        with self.open(path) as reader:
            assert_same(reader.ids("x"), np.array([1, 2], np.int64))
            assert list(reader.ids("y")) == ["a", "b"]
            assert [type(id) for id in reader.ids("y")] == [str, str]

    def test_extreme_integer_ids(self, path: Path) -> None:
        """The whole range of int64 can be used."""
        limits = np.iinfo(np.int64)
        ids = np.array([limits.max, -1, 0, limits.min, 1], np.int64)
        with self.create(path) as writer:
            writer.append(ids, {"x": np.arange(5)})
            assert_same(writer.missing(np.array([2, -1, limits.min])), np.array([2]))
        with self.open(path) as reader:
            assert_same(reader.ids(), ids)
            assert_same(reader.gather(ids[::-1])["x"], np.arange(5)[::-1])

    def test_odd_texts_as_ids(self, path: Path) -> None:
        """Empty and long strings, other scripts and NUL characters are valid ids."""
        ids = ["", "a", "aa", "ß", "日本語", "a\0", "\0", "line\nbreak", "x" * 5000, "😀"]
        with self.create(path) as writer:
            writer.append(ids, {"x": np.arange(len(ids))})
            assert writer.missing(["a\0", "b", ""]) == ["b"]
        with self.open(path) as reader:
            assert list(reader.ids()) == ids
            assert_same(reader.gather(ids[::-1])["x"], np.arange(len(ids))[::-1])

    @pytest.mark.parametrize(
        "ids",
        [[0.5, 1.5], [[1, 2]], [None, None], [b"a", b"b"], [1, "a"], [2**63, 0], 1],
        ids=repr,
    )
    def test_what_is_no_list_of_ids(self, path: Path, ids: Any) -> None:
        """Ids are all integers or all strings."""
        with self.create(path) as writer, pytest.raises(SawlogError):
            writer.append(ids, {"x": np.zeros(2)})

    def test_empty_batch(self, path: Path) -> None:
        """An empty batch is valid."""
        with self.create(path) as writer:
            assert writer.append(np.zeros(0, np.int64), rows(0)) == 0
            writer.append([1], rows(1))
            assert writer.append(np.zeros(0, np.int64), rows(0)) == 0
        with self.open(path) as reader:
            assert as_list(reader.ids()) == [1]
            assert reader.gather([])["grad"].shape == (0, 3)

    def test_an_empty_batch_does_not_fix_the_kind_of_ids(self, path: Path) -> None:
        """An empty list of ids does not fix their kind."""
        with self.create(path) as writer:
            assert writer.append([], rows(0)) == 0
            writer.append(["a"], rows(1))
        with self.open(path) as reader:
            assert as_list(reader.ids()) == ["a"]

    def test_two_tables(self, path: Path) -> None:
        """Each table has its own ids; with two tables, a name is required."""
        with self.create(path) as writer:
            writer.append([1, 2], {"x": np.arange(2)})
            writer.append(["b", "a", "c"], {"y": np.arange(3), "z": np.ones((3, 2))})
        with self.open(path) as reader:
            assert as_list(reader.ids("x")) == [1, 2]
            assert as_list(reader.ids("z")) == ["b", "a", "c"]
            assert list(reader.gather(["c"], ["y"])) == ["y"]
            assert_same(reader.gather(["c", "b"], ["y"])["y"], np.array([2, 0]))
            with pytest.raises(SawlogError):
                reader.ids()

    # ---- what does not fit the schema

    @pytest.mark.parametrize(
        ("ids", "values"),
        [
            pytest.param([1], {"grad": np.zeros((1, 3), np.float32)}, id="a name is missing"),
            pytest.param([1], rows(1) | {"more": np.zeros(1)}, id="a name more"),
            pytest.param([1], rows(1) | {"grad": np.zeros((1, 4), np.float32)}, id="shape"),
            pytest.param([1], rows(1) | {"grad": np.zeros(1, np.float32)}, id="fewer axes"),
            pytest.param([1], rows(1) | {"grad": np.zeros((1, 3))}, id="wider dtype"),
            pytest.param([1], rows(1) | {"label": np.zeros(1, np.int8)}, id="narrower dtype"),
            pytest.param([1], rows(1) | {"label": np.zeros(1, np.uint16)}, id="sign"),
            pytest.param(["1"], rows(1), id="the other kind of ids"),
        ],
    )
    def test_schema_mismatch(self, path: Path, ids: Any, values: dict[str, Any]) -> None:
        """Names, dtypes and shapes are fixed by the first write; a refused write leaves nothing."""
        with self.create(path) as writer:
            writer.append([0], rows(1))
            with pytest.raises(SchemaError):
                writer.append(ids, values)
        with self.open(path, "append") as writer:
            with pytest.raises(SchemaError):
                writer.append(ids, values)
            writer.append([7], rows(1, 7))
        with self.open(path) as reader:
            assert as_list(reader.ids()) == [0, 7]
            assert reader.names == ("grad", "label")

    @pytest.mark.parametrize("count", [0, 1, 3])
    def test_number_of_ids_and_rows_differ(self, path: Path, count: int) -> None:
        """The number of ids equals the number of rows."""
        with self.create(path) as writer:
            writer.append([0], rows(1))
            with pytest.raises(SawlogError):
                writer.append([1, 2], rows(count))
            with pytest.raises(SawlogError):
                writer.append([1, 2], rows(2) | {"label": rows(count)["label"]})
        with self.open(path) as reader:
            assert as_list(reader.ids()) == [0]

    def test_unknown_name(self, path: Path) -> None:
        """An unknown name raises."""
        with self.create(path) as writer:
            writer.append([0], rows(1))
        with self.open(path) as reader:
            for ask in (
                lambda: reader.read("grd"),
                lambda: reader.count("grd"),
                lambda: reader.ids("grd"),
                lambda: reader.entries("grd"),
                lambda: reader.gather([0], ["grad", "grd"]),
                lambda: list(reader.blocks(["grd"])),
            ):
                with pytest.raises(UnknownNameError, match="grd"):
                    ask()

    @pytest.mark.parametrize("name", ["sawlog.ids/x", "sawlog.", "__metadata__", ""])
    def test_names_that_are_taken(self, path: Path, name: str) -> None:
        """Reserved names are refused."""
        with self.create(path) as writer:
            with pytest.raises(SawlogError):
                writer.append([0], {name: np.zeros(1)})
            with pytest.raises(SawlogError):
                writer.log({name: 0.0})

    def test_odd_names(self, path: Path) -> None:
        """Any other string is a valid name."""
        odd = ["a/b", "a.b", "ä", "with space", "..", 'quo"te', "new\nline", "sawlog", "dtype"]
        with self.create(path) as writer:
            writer.append([0], {name: np.array([number]) for number, name in enumerate(odd)})
            writer.log({f"{name}!": number for number, name in enumerate(odd)})
        with self.open(path) as reader:
            assert reader.names == (*odd, *(f"{name}!" for name in odd))
            for number, name in enumerate(odd):
                assert_same(reader.read(name), np.array([number]))
                assert_same(reader.read(f"{name}!"), np.array([number]))

    # ---- duplicates

    @each_kind
    def test_duplicates_refused(self, path: Path, kind: str) -> None:
        """Policy "error": an id is written once, in this batch, this writer, or any before."""
        with self.create(path, duplicates="error") as writer:
            writer.append(names_of([1, 2], kind), rows(2))
            for again in ([2], [3, 1], [4, 4]):
                with pytest.raises(DuplicateIdError):
                    writer.append(names_of(again, kind), rows(len(again)))
            writer.flush()
            with pytest.raises(DuplicateIdError):
                writer.append(names_of([2], kind), rows(1))
        with self.open(path, "append") as writer:
            with pytest.raises(DuplicateIdError):
                writer.append(names_of([3, 2], kind), rows(2))
            writer.append(names_of([3], kind), rows(1, 3))
        with self.open(path) as reader:
            assert as_list(reader.ids()) == as_list(names_of([1, 2, 3], kind))
            assert_same(reader.read("label"), np.array([0, 1, 3], np.int16))

    @each_kind
    def test_duplicates_first(self, path: Path, kind: str) -> None:
        """Policy "first": known ids are skipped, and ``append`` returns how many were added."""
        with self.create(path, duplicates="first") as writer:
            assert writer.append(names_of([1, 2], kind), rows(2, 10)) == 2
            assert writer.append(names_of([2, 3, 3], kind), rows(3, 20)) == 1
        with self.open(path, "append") as writer:
            assert writer.append(names_of([1, 2, 3, 4], kind), rows(4, 30)) == 1
            writer.flush()
            assert writer.append(names_of([4], kind), rows(1, 40)) == 0
        self._has(path, names_of([1, 2, 3, 4], kind), [10, 11, 21, 33])

    @each_kind
    def test_duplicates_replace(self, path: Path, kind: str) -> None:
        """Policy "replace": the last row of an id counts, before and after compaction."""
        with self.create(path, duplicates="replace") as writer:
            assert writer.append(names_of([1, 2], kind), rows(2, 10)) == 2
            assert writer.append(names_of([2, 3, 3], kind), rows(3, 20)) in (2, 3)
            writer.flush()
            writer.append(names_of([1], kind), rows(1, 30))
        with self.open(path, "append") as writer:
            writer.append(names_of([3, 4], kind), rows(2, 40))
        self._has(path, names_of([1, 2, 3, 4], kind), [30, 20, 40, 41])
        self.compact(path)
        self._has(path, names_of([1, 2, 3, 4], kind), [30, 20, 40, 41])

    def _has(self, path: Path, ids: Any, labels: list[int]) -> None:
        """Assert that the store has these ids, each once, in any order, with these labels."""
        expected = dict(zip(as_list(ids), labels, strict=True))
        with self.open(path) as reader:
            found = as_list(reader.ids())
            assert sorted(found) == sorted(expected)
            assert reader.read("label").tolist() == [expected[id] for id in found]
            assert reader.gather(ids)["label"].tolist() == labels
            assert reader.count("label") == len(labels)
            blocks = list(reader.blocks())
            assert [id for block in blocks for id in as_list(block.ids)] == found
            seen = [label for block in blocks for label in block.values["label"].tolist()]
            assert seen == [expected[id] for id in found]

    def test_duplicates_of_two_writers(self, path: Path) -> None:
        """Concurrent writers may write the same id: the reader raises, or reads the first row."""
        with self.create(path, duplicates="error") as one:
            one.append([0], rows(1))
            one.flush()
            with self.open(path, "append") as two:
                one.append([1, 2], rows(2, 10))
                two.append([2, 3], rows(2, 20))
        with (
            pytest.raises(DuplicateIdError, match="2"),
            self.open(path) as reader,
        ):
            reader.gather([0, 1, 2, 3])
        found = {}
        for which in ("first", "replace"):
            with self.open(path, duplicates=which) as reader:
                assert sorted(as_list(reader.ids())) == [0, 1, 2, 3]
                found[which] = reader.gather([0, 1, 2, 3])["label"].tolist()
        assert sorted(label[2] for label in found.values()) == [11, 20]
        assert {(*label[:2], label[3]) for label in found.values()} == {(0, 10, 21)}

    # ---- not a number

    @pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "bfloat16"])
    def test_nan_refused(self, path: Path, dtype: str) -> None:
        """Policy "error": the batch is refused with its name, and the writer stays usable."""
        bad = _with_nan(dtype)
        with self.create(path, nan="error") as writer:
            writer.append([0], {"x": bad[:1]})
            with pytest.raises(NanError, match="x"):
                writer.append([1, 2], {"x": bad[:2]})
            with pytest.raises(NanError, match="y"):
                writer.log({"y": bad[1]})
            writer.append([2], {"x": bad[2:]})
        with self.open(path) as reader:
            assert as_list(reader.ids()) == [0, 2]
            assert_same(reader.read("x"), bad[[0, 2]])

    def test_nan_warned_of(self, path: Path) -> None:
        """Policy "warn": the values are stored."""
        with self.create(path, nan="warn") as writer:
            writer.append([0], {"x": np.array([1.0])})
            with pytest.warns(Warning, match="x"):
                writer.append([1], {"x": np.array([nan])})
        with self.open(path) as reader:
            assert_same(reader.read("x"), np.array([1.0, nan]))

    def test_nan_allowed(self, path: Path) -> None:
        """By default NaN and infinities are values."""
        values = np.array([nan, np.inf, -np.inf, -0.0])
        with self.create(path) as writer:
            writer.append([0, 1, 2, 3], {"x": values})
        with self.open(path) as reader:
            assert_same(reader.read("x"), values)

    # ---- what is not there yet

    @each_kind
    def test_missing(self, path: Path, kind: str) -> None:
        """``missing`` returns ids that are neither published nor accepted, in the order given."""
        with self.create(path) as one, self.open(path, "append") as two:
            assert as_list(one.missing(names_of([3, 1], kind))) == as_list(names_of([3, 1], kind))
            one.append(names_of([1, 2], kind), rows(2))
            assert as_list(one.missing(names_of([4, 2, 3, 1], kind))) == as_list(
                names_of([4, 3], kind)
            )
            one.flush()
            two.append(names_of([3], kind), rows(1))
            assert as_list(two.missing(names_of([4, 2, 3, 1], kind))) == as_list(
                names_of([4], kind)
            )
            two.flush()
            assert as_list(one.missing(names_of([4, 3], kind), "grad")) == as_list(
                names_of([4], kind)
            )
            assert len(one.missing(names_of([1, 2, 3], kind))) == 0


def _with_nan(dtype: str) -> np.ndarray:
    """Return one, NaN, two."""
    if dtype == "bfloat16":
        import ml_dtypes

        return np.array([1, nan, 2], ml_dtypes.bfloat16)
    return np.array([1, nan, 2], dtype)
