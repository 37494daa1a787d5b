"""Contract: what a reader shows, and that its arrays cannot change the store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sawlog.errors import UnknownIdError
from sawlog.testing._equality import assert_same
from sawlog.testing._hooks import StoreHooks, as_list, names_of, rows

each_kind = pytest.mark.parametrize("kind", ["int", "str"])
ORDER = [4, 11, 0, 7, 19, 2, 3, 1, 15, 5, 9, 8, 10, 6, 12, 18, 13, 17, 14, 16]


class ReadingContract(StoreHooks):
    """Gathering, block iteration, snapshots and views."""

    def fill(self, path: Path, kind: str = "int", segments: int = 4) -> None:
        """Make a store of twenty rows, ids in the order of ``ORDER``, row ``i`` for id ``i``."""
        everything = rows(len(ORDER))
        with self.create(path) as writer:
            for part in np.array_split(ORDER, segments):
                values = {name: each[part] for name, each in everything.items()}
                writer.append(names_of(part, kind), values)
                writer.flush()

    @each_kind
    @pytest.mark.parametrize(
        "wanted",
        [[0], ORDER, ORDER[::-1], sorted(ORDER), [3, 3, 3], [7, 0, 7, 19, 0], []],
        ids=["one", "as written", "backwards", "sorted", "repeated", "mixed", "none"],
    )
    def test_gather(self, path: Path, kind: str, wanted: list[int]) -> None:
        """Rows of chosen ids in any order, repeats included."""
        self.fill(path, kind)
        with self.open(path) as reader:
            found = reader.gather(names_of(wanted, kind))
            assert list(found) == ["grad", "label"]
            for name, expected in rows(len(ORDER)).items():
                assert_same(found[name], expected[wanted], name)

    @each_kind
    def test_gather_unknown_id(self, path: Path, kind: str) -> None:
        """An unknown id raises, and is named."""
        self.fill(path, kind)
        with self.open(path) as reader:
            for wanted in ([99], [0, 99, 1], [99, 99]):
                with pytest.raises(UnknownIdError, match="99"):
                    reader.gather(names_of(wanted, kind))

    def test_gather_chosen_names(self, path: Path) -> None:
        """Only the names that were asked for, in that order."""
        self.fill(path)
        with self.open(path) as reader:
            assert list(reader.gather([1], ["label"])) == ["label"]
            assert list(reader.gather([1], ["label", "grad"])) == ["label", "grad"]

    @each_kind
    @pytest.mark.parametrize("read_ahead", [True, False])
    @pytest.mark.parametrize("budget", [1, 40, 100, 64 << 20])
    def test_blocks(self, path: Path, kind: str, budget: int, read_ahead: bool) -> None:
        """Blocks cover every row once, in order, whatever their size."""
        self.fill(path, kind)
        with self.open(path) as reader:
            blocks = list(reader.blocks(budget=budget, read_ahead=read_ahead))
            assert [id for block in blocks for id in as_list(block.ids)] == as_list(reader.ids())
            for name, expected in rows(len(ORDER)).items():
                parts = [block.values[name] for block in blocks]
                assert_same(np.concatenate(parts), expected[ORDER], name)
            assert all(len(block.ids) == len(block.values["grad"]) > 0 for block in blocks)
            if budget == 1:
                assert len(blocks) == len(ORDER)

    def test_blocks_of_chosen_names(self, path: Path) -> None:
        """Only the names that were asked for."""
        self.fill(path)
        with self.open(path) as reader:
            blocks = list(reader.blocks(["label"], budget=8))
            assert {tuple(block.values) for block in blocks} == {("label",)}
            parts = [block.values["label"] for block in blocks]
            assert_same(np.concatenate(parts), rows(len(ORDER))["label"][ORDER])

    def test_blocks_left_early(self, path: Path) -> None:
        """Iteration may stop early."""
        self.fill(path)
        with self.open(path) as reader:
            for _ in range(3):
                for block in reader.blocks(budget=40):
                    assert len(block.ids)
                    break
            assert_same(reader.gather([3])["label"], np.array([3], np.int16))

    @pytest.mark.parametrize("segments", [1, 4])
    def test_views_are_read_only(self, path: Path, segments: int) -> None:
        """Writing to a returned array does not change the store."""
        self.fill(path, segments=segments)
        with self.create(path.with_name("series")) as writer:
            writer.extend({"loss": np.arange(4.0)}, step=np.arange(4))
        with self.open(path) as reader, self.open(path.with_name("series")) as series:
            arrays = [
                reader.read("grad"),
                reader.gather([1, 2])["grad"],
                *(block.values["grad"] for block in reader.blocks()),
                np.asarray(reader.ids()),
                series.read("loss"),
                series.entries("loss").values,
                series.entries("loss").steps["step"],
            ]
            for array in arrays:
                _scribble(array)
            self._unharmed(path)
            assert as_list(reader.ids()) == ORDER
            assert_same(reader.read("grad"), rows(len(ORDER))["grad"][ORDER])
            assert_same(reader.gather([2, 1])["grad"], rows(len(ORDER))["grad"][[2, 1]])
            assert_same(series.read("loss"), np.arange(4.0))
            assert_same(series.entries("loss").steps["step"], np.arange(4))

    def _unharmed(self, path: Path) -> None:
        with self.open(path) as reader:
            assert reader.verify().ok
            assert_same(reader.read("grad"), rows(len(ORDER))["grad"][ORDER])

    def test_refresh(self, path: Path) -> None:
        """A reader is a snapshot; ``refresh`` shows new data, and returns whether there is any."""
        with self.create(path) as writer, self.open(path) as early:
            assert early.names == ()
            writer.append([0, 1], rows(2))
            writer.log({"loss": 0.5}, step=0)
            writer.flush()
            assert early.refresh() is True
            with self.open(path) as reader:
                assert reader.refresh() is False
                writer.append([2], rows(1, 2))
                writer.log({"loss": 0.25}, step=1)
                writer.log({"new": 1})
                writer.flush()
                assert as_list(reader.ids()) == as_list(early.ids()) == [0, 1]
                assert reader.count("loss") == len(reader.entries("loss")) == 1
                with pytest.raises(UnknownIdError):
                    reader.gather([2])
                assert reader.refresh() is True
                assert reader.refresh() is False
                assert as_list(reader.ids()) == [0, 1, 2]
                assert_same(reader.read("loss"), np.array([0.5, 0.25]))
                assert_same(reader.gather([2, 0])["label"], np.array([2, 0], np.int16))
                assert_same(reader.read("new"), np.array([1]))

    def test_dataset(self, path: Path) -> None:
        """Items by position, one at a time and many at once."""
        self.fill(path)
        with self.open(path) as reader:
            dataset = reader.dataset(["label"])
            assert len(dataset) == len(ORDER)
            for place in (0, 5, len(ORDER) - 1, -1):
                assert dict(dataset[place]) == {"id": ORDER[place], "label": ORDER[place]}
            many = dataset.__getitems__([3, 0, 3])
            assert [item["id"] for item in many] == [ORDER[3], ORDER[0], ORDER[3]]
            assert [item["label"] for item in many] == [ORDER[3], ORDER[0], ORDER[3]]
            with pytest.raises(IndexError):
                dataset[len(ORDER)]

    def test_meta(self, path: Path) -> None:
        """``meta`` is read as written."""
        meta = {"model": "mlp", "sizes": [1, 2], "nested": {"lr": 0.1, "none": None}}
        with self.create(path, meta=meta) as writer:
            identity = writer.id
        with self.open(path) as reader:
            assert reader.meta == meta
            assert reader.config is not None
        assert identity


def _scribble(array: np.ndarray) -> None:
    """Overwrite an array if it lets us."""
    if array.flags.writeable:
        array[...] = np.zeros_like(array) - 1
        return
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True
