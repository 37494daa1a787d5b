"""The end of a pass over the data, where every process waits for all others."""

import threading

import pytest

from sawlog.capture._ranks import Ranks
from sawlog.errors import ProcessLostError


class Group:
    """Processes that share a dict as their key-value store."""

    def __init__(self, rank, size, values):
        self.rank, self.size, self.values = rank, size, values

    def put(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values.get(key)

    def claim(self, key):
        return self.values.setdefault(key, self.rank) == self.rank


def ranks_of(path, timeout, monkeypatch, size=3):
    """One for each process, each of which opens the run for the first time."""
    values, found = {}, []
    for rank in range(size):
        monkeypatch.setattr(Ranks, "_opened", type(Ranks._opened)())
        found.append(Ranks(Group(rank, size, values), path, timeout))
    return found


@pytest.mark.parametrize("rank", range(3))
def test_every_process_waits_for_all_others(tmp_path, monkeypatch, rank):
    ranks = ranks_of(tmp_path, 0.02, monkeypatch)
    others = [each for each in range(3) if each != rank]
    with pytest.raises(ProcessLostError, match=f"Ranks {others[0]}, {others[1]} of this job"):
        ranks[rank].meet("finalize()")


def test_a_process_that_is_late_is_named(tmp_path, monkeypatch):
    ranks = ranks_of(tmp_path, 0.02, monkeypatch)
    for each in (0, 2):
        with pytest.raises(ProcessLostError):
            ranks[each].meet("finalize()")
    assert ranks[1].meet("finalize()") is None  # the last one waits for nobody
    with pytest.raises(ProcessLostError, match="Ranks 0, 2 of this job"):
        ranks[1].meet("finalize()")  # of the next pass


def test_all_processes_meet(tmp_path, monkeypatch):
    ranks = ranks_of(tmp_path, 20.0, monkeypatch)
    threads = [threading.Thread(target=each.meet, args=("finalize()",)) for each in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert len({each.name for each in ranks}) == 1
