"""What is swept away is left over, and never what somebody still writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sawlog.store._disk import LocalDisk

MINUTE, DAY = 60, 86400


@pytest.fixture
def disk(tmp_path: Path) -> LocalDisk:
    made = LocalDisk(tmp_path / "store")
    made.make(("tmp", "segments"))
    return made


def set_age(disk: LocalDisk, seconds: float) -> None:
    for file in Path(disk.root, "tmp").iterdir():
        os.utime(file, (time.time() - seconds,) * 2)


@pytest.mark.parametrize(("age", "swept"), [(0, 0), (2 * MINUTE, 0), (DAY / 2, 0), (2 * DAY, 1)])
def test_the_part_of_a_living_writer(disk: LocalDisk, age: float, swept: int) -> None:
    upload = disk.upload("segments/a-00000001.safetensors")
    upload.write(b"abc")
    set_age(disk, age)
    assert disk.sweep() == swept
    if not swept:
        upload.commit()
        assert disk.read("segments/a-00000001.safetensors", 10) == b"abc"
    upload.discard()


@pytest.mark.parametrize(("age", "swept"), [(0, 0), (MINUTE / 2, 0), (2 * MINUTE, 1), (2 * DAY, 1)])
def test_the_part_of_a_dead_one(disk: LocalDisk, age: float, swept: int) -> None:
    left = Path(disk.root, "tmp", "a.part")
    left.write_bytes(b"abc")
    kept = Path(disk.root, "tmp", "notes.txt")
    kept.write_bytes(b"of somebody else")
    set_age(disk, age)
    assert disk.sweep() == swept
    assert left.exists() == (not swept)
    assert kept.exists()


def test_files_of_which_there_may_be_one(disk: LocalDisk) -> None:
    assert disk.put_new("one.json", b"1")
    assert not disk.put_new("one.json", b"2")
    assert disk.read("one.json", 10) == b"1"
    disk.put("one.json", b"3")
    assert disk.read("one.json", 1) == b"3"
    with pytest.raises(OSError, match="more than 0"):
        disk.read("one.json", 0)
    assert disk.list("tmp") == []


def test_a_lease_is_held_by_one(disk: LocalDisk) -> None:
    lease = disk.lease("tmp/lock")
    assert lease is not None
    assert lease.certain
    assert disk.lease("tmp/lock") is None
    lease.release()
    again = disk.lease("tmp/lock")
    assert again is not None
    again.release()
