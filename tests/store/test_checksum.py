"""What was checked, and for how long it counts as checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.store._disk import _local
from sawlog.store._format import _checksum, _segment
from sawlog.store._format._checksum import CheckedBytes, CheckedTensors, Cut, bytes_of

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("age", "remembered"),
    [(0, False), (1, False), (2, True), (3600, True), (0.01, False), (0.09, False), (0.11, True)],
)
def test_a_young_file_is_not_remembered(monkeypatch: Any, age: float, remembered: bool) -> None:
    """The clock of a disk is coarse: a second change in the same moment would not be seen.

    A time of whole seconds tells of a disk that has no finer ones.
    """
    now = 1_700_000_000 * SECOND
    monkeypatch.setattr(_checksum.time, "time_ns", lambda: now)
    memory, key = CheckedTensors(), (1, 2, 3, 4, now - int(age * SECOND))
    memory.add(key, "x")
    assert memory.knows(key, "x") == remembered
    assert not memory.knows(key, "y")
    assert not memory.knows((*key[:-1], key[-1] - 1), "x")


def test_few_files_are_remembered() -> None:
    memory = CheckedTensors(files=2)
    for file in range(3):
        memory.add((file, 0), "x")
    assert [memory.knows((file, 0), "x") for file in range(3)] == [False, True, True]


def cut_and_hashes(values: np.ndarray) -> tuple[Cut, np.ndarray]:
    cut = Cut.of(len(values), values[:1].nbytes)
    return cut, np.frombuffer(cut.hashes(bytes_of(values)), "<u8")


# With spans and blocks that are shorter at the end.
ROWS = {"a block for each row": (600, 5000), "rows of a block": (2105, 1000)}


@pytest.mark.parametrize(("rows", "width"), ROWS.values(), ids=ROWS)
def test_only_what_was_looked_at_counts_as_checked(rows: int, width: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (rows, width), np.uint8)
    cut, hashes = cut_and_hashes(values)
    assert cut.blocks > 8
    assert cut.hash_count == len(hashes) == cut.blocks + cut.spans
    assert cut.spans == 3
    by_hand = [(cut.span, s) for s in range(cut.spans)] + [
        (cut.block, b) for b in range(cut.blocks)
    ]
    assert hashes.tolist() == [
        _checksum.hash_of(values[n * i : n * (i + 1)].tobytes()) for n, i in by_hand
    ]
    bad = values.copy()
    wrong = cut.block  # the first row of the second block
    bad[wrong, -1] ^= 1
    checked = CheckedBytes(bytes_of(bad), cut, hashes, known=False)
    good = np.array([0, rows - 1])
    assert checked.rows_ok(good)
    assert checked.copied_ok(good, bad[good])
    both = np.array([0, wrong])
    for _ in range(2):  # having failed, it is looked at again
        assert not checked.rows_ok(both)
        assert not checked.copied_ok(both, bad[both])
        assert not checked.range_ok(0, wrong + 1)
        assert not checked.range_ok(wrong, rows)
        assert not checked.range_ok(0, rows)
        assert not checked.complete
    assert checked.range_ok(0, wrong)
    assert checked.range_ok(wrong + cut.block, rows)
    assert not checked.complete


@pytest.mark.parametrize(("rows", "width"), ROWS.values(), ids=ROWS)
def test_all_parts_are_the_whole(rows: int, width: int) -> None:
    values = np.zeros((rows, width), np.uint8)
    checked = CheckedBytes(bytes_of(values), *cut_and_hashes(values), known=False)
    assert checked.range_ok(0, rows // 2)
    assert not checked.complete
    assert checked.range_ok(rows // 2, rows)
    assert checked.complete


@pytest.mark.parametrize("width", [1024, 64], ids=["a block for each row", "rows of a block"])
def test_a_damaged_row_beside_one_that_was_gathered(tmp_path: Path, width: int) -> None:
    path = tmp_path / "store"
    rows = np.arange(40 * width, dtype=np.float64).reshape(40, width)
    with store.create(path) as writer:
        writer.append(np.arange(40), {"row": rows})
    file = next((path / "segments").iterdir())
    data = bytearray(file.read_bytes())
    data[data.index(rows[20].tobytes()) + 8] ^= 1
    file.write_bytes(data)
    reader = store.open(path)
    for _ in range(2):
        assert np.array_equal(reader.gather([39, 0])["row"], rows[[39, 0]])
        for asked in ([20], [0, 20], [39, 0, 20], [1, 20, 2], [38, 37, 20, 36]):
            with pytest.raises(DamagedStoreError, match="bytes of 'row'"):
                reader.gather(asked)
        with pytest.raises(DamagedStoreError, match="bytes of 'row'"):
            reader.read("row")


def test_all_rows_of_neighbouring_tensors_are_read_ahead_and_released(tmp_path: Path) -> None:
    with store.create(tmp_path / "store") as writer:
        rows = {name: np.zeros((64, 1024)) for name in ("a", "b")}
        writer.append(np.arange(64), {**rows, "far": np.zeros((64, 1024), np.float32)})
    (segment,) = store.open(tmp_path / "store").segments
    a, b, far = (segment.tensors[name] for name in ("a", "b", "far"))
    assert a.stop == b.start < far.start < b.stop + 4096
    assert segment._ranges(("b", "a"), 0, 64) == [(a.start, b.stop)]
    assert segment._ranges(("b", "a"), 2, 3) == [
        (each.start + 2 * 8192, each.start + 3 * 8192) for each in (a, b)
    ]
    assert segment._ranges(("a", "far", "b"), 0, 64) == [(a.start, far.stop)]
    assert segment._ranges(("a",), 5, 5) == []


def test_checksums_of_a_tensor_that_was_checked_before_are_not_read_again(tmp_path: Path) -> None:
    """And those of one that was not are checked first, by everyone who checks."""
    path = tmp_path / "store"
    with store.create(path) as writer:
        writer.append(np.arange(4), {"row": np.ones((4, 8)), "other": np.ones(4)})
    file = next((path / "segments").iterdir())
    data = bytearray(file.read_bytes())
    data[-9] ^= 1  # a checksum, not that of the checksums
    file.write_bytes(data)
    with pytest.raises(DamagedStoreError, match="its checksums were changed"):
        store.open(path).gather([0])
    assert not store.verify(path).ok
    assert store.open(path, damaged="skip").count("row") == 0


def test_a_file_that_was_checked_and_is_changed_in_place_before_it_is_mapped(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """Its size and its time of modification are as before."""
    path = tmp_path / "store"
    with store.create(path) as writer:
        writer.append([0], {"row": np.ones((1, 4))})
    monkeypatch.setattr(_checksum.time, "time_ns", lambda: 2**62)  # the file is old
    assert store.open(path).read("row").sum() == 4
    reader = store.open(path)
    file = next((path / "segments").iterdir())
    before, data = file.stat(), file.read_bytes()
    with open(file, "r+b") as opened:
        opened.write(data.replace(np.ones(4).tobytes(), np.zeros(4).tobytes()))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DamagedStoreError, match="bytes of 'row' were changed"):
        reader.read("row")


def test_a_file_that_is_cut_while_it_is_opened(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "store"
    with store.create(path) as writer:
        writer.append([0], {"row": np.ones((1, 4))})
    reader = store.open(path)
    whole = _local._File.map
    for size in (0, 7, -1):

        def cut(file: Any, size: int = size) -> Any:
            return _local._Bytes(bytes(whole(file).data)[:size])

        monkeypatch.setattr(_local._File, "map", cut)
        with pytest.raises(DamagedStoreError, match="cut while it was read"):
            reader.gather([0])


def test_a_tensor_is_remembered_when_all_of_it_was_checked(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "store"
    with store.create(path) as writer:
        writer.append(np.arange(4), {"row": np.ones((4, 1 << 14))})
    known: list[str] = []
    monkeypatch.setattr(_segment._checked_before, "add", lambda key, name: known.append(name))
    (segment,) = store.open(path).segments
    for start in (0, 2, 1):
        segment.check("row", start, start + 1)
    assert known == []
    segment.check("row", 3, 4)
    assert known == ["row"]


def test_who_skips_damage_does_not_trust_what_was_checked_before(
    tmp_path: Path, monkeypatch: Any
) -> None:
    path = tmp_path / "store"
    with store.create(path) as writer:
        writer.append([0], {"row": np.ones((1, 4))})
    file = next((path / "segments").iterdir())
    file.write_bytes(file.read_bytes().replace(np.ones(4).tobytes(), np.zeros(4).tobytes()))
    monkeypatch.setattr(_segment._checked_before, "knows", lambda key, name: True)
    assert store.open(path).read("row").sum() == 0
    assert store.open(path, damaged="skip").count("row") == 0
