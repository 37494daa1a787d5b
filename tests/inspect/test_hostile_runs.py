"""Files of runs that are no files: links, devices and pipes are not read."""

import os

import pytest

from sawlog import store
from sawlog.errors import ArgumentError
from sawlog.inspect import run_summary
from sawlog.inspect._run_summary import _is_part
from sawlog.inspect._store_folders import run_file
from sawlog.run_files._saved_options import load_options
from tests.store.hostile_stores import soon


def link_to_zeros(path):
    path.symlink_to("/dev/zero")


def deep(path):
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("make", [os.mkfifo, link_to_zeros, deep, os.mkdir])
def test_a_run_file_that_is_none(tmp_path, make):
    make(tmp_path / "run.json")
    with soon():
        try:
            assert run_file(tmp_path) is None
        except (OSError, ValueError):
            assert make is deep
        with pytest.raises(ArgumentError, match=r"folder of a run|does not contain"):
            load_options(tmp_path)


@pytest.mark.parametrize("make", [os.mkfifo, link_to_zeros, deep, os.mkdir])
def test_a_store_of_a_run_without_an_identity(tmp_path, make):
    with store.create(tmp_path / "metrics") as writer:
        writer.log({"loss": 0.5}, step=0)
    (tmp_path / "metrics" / "store.json").unlink()
    make(tmp_path / "metrics" / "store.json")
    with soon():
        assert not _is_part(tmp_path / "metrics")
        run_summary(tmp_path)
