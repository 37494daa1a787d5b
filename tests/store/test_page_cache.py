"""Whether a page of a memory map is in memory."""

import mmap
import sys
from pathlib import Path

import pytest

from sawlog.store._disk._page_cache import in_memory


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the answer may be False")
def test_a_page_that_was_used_is_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (3 * mmap.PAGESIZE + 1))
    with (tmp_path / "file").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert mapped[:] == b"x" * len(mapped)
    assert all(in_memory(mapped, at) for at in (0, mmap.PAGESIZE, len(mapped) - 1))


def test_bytes_that_are_not_there() -> None:
    mapped = mmap.mmap(-1, mmap.PAGESIZE)
    assert not in_memory(mapped, -1)
    assert not in_memory(mapped, mmap.PAGESIZE)
