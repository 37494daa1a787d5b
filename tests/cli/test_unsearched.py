"""Folders that cannot be searched are told of: what is in them is not passed over in silence."""

import os

import pytest

import sawlog.store
from sawlog.errors import StorePermissionError
from sawlog.inspect import find_runs
from sawlog.inspect._store_folders import must_search
from sawlog.report import write_report

TOLD = "was not searched: Permission denied"


@pytest.fixture
def half(tmp_path, monkeypatch):
    """Two seeds, one of them in a folder of somebody else; root may read everything, so pretend."""
    for seed in range(2):
        with sawlog.store.create(tmp_path / f"seed-{seed}") as writer:
            writer.log({"loss": 1.0}, step=0)
    scandir = os.scandir

    def refusing(path="."):
        if os.fspath(path) == str(tmp_path / "seed-1"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    return tmp_path


@pytest.mark.parametrize("command", ["verify", "compact"])
def test_what_can_be_read_is_done_and_the_exit_code_says_that_it_is_not_all(sawlog_, half, command):
    done = sawlog_(command, half)
    assert (done.code, done.err.count(TOLD)) == (2, 1)
    assert f"{half / 'seed-1'} {TOLD}" in done.err
    assert "seed-0" in done.out


@pytest.mark.parametrize("command", ["plot", "compare", "show", "tail", "report", "sync"])
def test_an_answer_without_some_of_the_runs_is_refused(sawlog_, half, command):
    more = {
        "sync": ("--to", "tensorboard", "--out", half / "tb"),
        "report": ("-o", half / "r.html"),
    }
    done = sawlog_(command, half, *more.get(command, ()))
    assert (done.code, done.out) == (2, "")
    assert f"{half / 'seed-1'} {TOLD}" in done.err
    assert "hint: check who owns it" in done.err
    assert not (half / "r.html").exists()


def test_ls_lists_the_others_and_says_so(sawlog_, half):
    done = sawlog_("ls", half)
    assert (done.code, "seed-0" in done.out) == (0, True)
    assert TOLD in done.err


def test_a_report_from_python_is_refused_too(half):
    with pytest.raises(StorePermissionError, match=TOLD):
        write_report([half], half / "report.html")


def test_a_folder_that_is_gone_by_now_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    scandir = os.scandir

    def vanished(path="."):
        if os.fspath(path) == str(tmp_path / "gone"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanished)
    assert list(find_runs(tmp_path, must_search)) == []
