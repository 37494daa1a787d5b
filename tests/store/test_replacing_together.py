"""``exists="replace"`` in one of several processes of a job."""

import pytest

from sawlog.store._maintenance import _remove
from sawlog.store._maintenance._process_group import LaunchedProcesses
from tests.store.test_replacing import fill


@pytest.mark.parametrize("for_all", [False, True])
def test_a_store_of_this_job_is_replaced_by_who_decides_for_all(tmp_path, monkeypatch, for_all):
    """Siblings keep what one of them created; who decides for them has none that came before."""
    fill(tmp_path / "s")
    monkeypatch.setattr(_remove.InUse, "written", set())
    here = LaunchedProcesses(several=True, started=0.0, ranked=True)
    monkeypatch.setattr(_remove, "process_group", lambda: here)
    path = tmp_path / "s"
    removed = _remove.replace_stores(lambda: [path], "Replacing", for_all=for_all)
    assert removed == ([path] if for_all else [])
    assert (path / "store.json").exists() is not for_all


def test_a_store_that_this_process_wrote_is_its_own(tmp_path, monkeypatch):
    """Also in a job of several, and however new it is."""
    fill(tmp_path / "s")
    here = LaunchedProcesses(several=True, started=0.0, ranked=True)
    monkeypatch.setattr(_remove, "process_group", lambda: here)
    path = tmp_path / "s"
    assert _remove.replace_stores(lambda: [path], "Replacing") == [path]
