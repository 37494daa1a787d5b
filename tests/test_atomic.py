"""Pieces are written to a file in few calls, and completely, however much each call takes."""

import os

import numpy as np
import pytest

from sawlog import _atomic, store
from sawlog._pool import thread_pool

PIECES = [b"ab", b"", memoryview(np.arange(6, dtype="<i4").reshape(2, 3)), bytearray(b"c"), b"defg"]
WHOLE = b"ab" + np.arange(6, dtype="<i4").tobytes() + b"cdefg"


@pytest.mark.parametrize("most_pieces", [1, 2, 1000])
@pytest.mark.parametrize("most_bytes", [0, 7, 1 << 30])
@pytest.mark.parametrize("taken", [1, 2, 3, 5, 1000])
def test_every_byte_is_written_in_order(tmp_path, monkeypatch, most_pieces, most_bytes, taken):
    monkeypatch.setattr(_atomic, "_MOST_PIECES", most_pieces)
    monkeypatch.setattr(_atomic, "_MOST_BYTES", most_bytes)
    sizes = []

    class SlowDisk:
        """A system that takes a few bytes at a time."""

        def __getattr__(self, name):
            return getattr(os, name)

        @staticmethod
        def write(descriptor, data):
            return os.write(descriptor, bytes(data)[:taken])

        @staticmethod
        def writev(descriptor, pieces):
            sizes.append((len(pieces), sum(map(len, pieces))))
            return os.write(descriptor, b"".join(pieces)[:taken])

    monkeypatch.setattr(_atomic, "os", SlowDisk())
    with open(tmp_path / "file", "wb") as file:
        _atomic.write_all(file.fileno(), *PIECES)
    assert (tmp_path / "file").read_bytes() == WHOLE
    assert all(count <= most_pieces and size <= most_bytes for count, size in sizes)
    assert sizes or most_bytes < 30 or most_pieces == 1


def test_many_pieces(tmp_path):
    pieces = [bytes([number % 256]) * (number % 3) for number in range(5000)]
    with open(tmp_path / "file", "wb") as file:
        _atomic.write_all(file.fileno(), *pieces)
        _atomic.write_all(file.fileno())
        _atomic.write_all(file.fileno(), b"", b"")
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_without_a_call_for_pieces(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "writev")
    with open(tmp_path / "file", "wb") as file:
        _atomic.write_all(file.fileno(), *PIECES)
    assert (tmp_path / "file").read_bytes() == WHOLE


@pytest.mark.skipif(not hasattr(os, "writev"), reason="the system writes pieces one by one")
def test_a_segment_is_written_by_one_call(tmp_path, monkeypatch):
    """Linux keeps a file in larger pages if its first bytes are written together with the rest."""
    calls, writev = [], os.writev

    def counted(descriptor, pieces):
        calls.append(len(pieces))
        return writev(descriptor, pieces)

    monkeypatch.setattr(os, "writev", counted)
    with store.create(tmp_path / "store", interval=None) as writer:
        writer.append(np.arange(5), {"x": np.ones((5, 1000)), "y": np.ones(5)})
    assert len(os.listdir(tmp_path / "store" / "segments")) == 1
    assert calls == [5]  # header, ids, x, y and checksums
    assert store.open(tmp_path / "store").gather([4])["x"].sum() == 1000


def test_a_pool_without_work_starts_no_thread(monkeypatch):
    monkeypatch.setattr("sawlog._pool.ThreadPoolExecutor", None)
    with thread_pool(2, "unused") as pool:
        pass
    pool.shutdown()
