"""``exists="replace"`` in one of several processes of a job."""

import errno

import pytest

from sawlog.store._disk import _local
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


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_on_disk_if_it_must_be(tmp_path, monkeypatch, durable):
    said, commit = [], _local.AsideFile.commit

    def noted(self, **options):
        said.append(options)
        return commit(self, **options)

    monkeypatch.setattr(_local.AsideFile, "commit", noted)
    disk = _local.LocalDisk(tmp_path)
    disk.make(("tmp",))
    disk.put("a", b"data", durable=durable)
    assert said == [{"durable": durable}]
    assert (tmp_path / "a").read_bytes() == b"data"
    disk.put("a", b"more")
    assert said[1] == {"durable": True}


def test_a_name_leads_through_folders_alone(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    disk = _local.LocalDisk(tmp_path)
    assert disk._path("folder/a") == str(tmp_path / "folder" / "a")
    with pytest.raises(NotADirectoryError):
        disk._path("file/a")
    with pytest.raises(OSError, match="link") as caught:
        disk._path("link/a")
    assert caught.value.errno == errno.ELOOP
    for odd in ("", "../a", "a//b", "./a"):
        with pytest.raises(ValueError, match="not the name of a file in a store"):
            disk._path(odd)
