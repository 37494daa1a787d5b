"""What was checked, and for how long it counts as checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import DamagedStoreError
from sawlog.store._format import _checksum, _segment
from sawlog.store._format._checksum import CheckedBytes, CheckedTensors, Cut, bytes_of

SECOND = 1_000_000_000


@pytest.mark.parametrize(("age", "remembered"), [(0, False), (1.9, False), (2, True), (3600, True)])
def test_a_young_file_is_not_remembered(monkeypatch: Any, age: float, remembered: bool) -> None:
    """The clock of a disk is coarse: a second change in the same moment would not be seen."""
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


ROWS = {"a block for each row": (600, 5000), "rows of a block": (40, 1000)}


@pytest.mark.parametrize(("rows", "width"), ROWS.values(), ids=ROWS)
def test_only_what_was_looked_at_counts_as_checked(rows: int, width: int) -> None:
    values = np.random.default_rng(0).integers(0, 256, (rows, width), np.uint8)
    cut, hashes = cut_and_hashes(values)
    assert cut.blocks > 8
    assert cut.hash_count == len(hashes) == cut.blocks + cut.spans
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


def test_a_damaged_row_beside_one_that_was_gathered(tmp_path: Path) -> None:
    path = tmp_path / "store"
    rows = np.arange(3 * 1024, dtype=np.float64).reshape(3, 1024)
    with store.create(path) as writer:
        writer.append([0, 1, 2], {"row": rows})
    file = next((path / "segments").iterdir())
    data = bytearray(file.read_bytes())
    data[data.index(rows[1].tobytes()) + 8] ^= 1
    file.write_bytes(data)
    reader = store.open(path)
    for _ in range(2):
        assert np.array_equal(reader.gather([2, 0])["row"], rows[[2, 0]])
        with pytest.raises(DamagedStoreError, match="bytes of 'row'"):
            reader.gather([1])
        with pytest.raises(DamagedStoreError, match="bytes of 'row'"):
            reader.read("row")


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
