"""What to type after the disk refused: only a writer has something to flush."""

import errno
from pathlib import Path

import pytest

from sawlog.errors import StoreFullError, StoreWriteError
from sawlog.store._format._json_files import write_error


@pytest.mark.parametrize(
    ("doing", "hint"),
    [
        ("writing to", "free some space and call flush() again; accepted data is kept in memory"),
        ("compacting", "free some space and try again."),
        ("repairing", "free some space and try again."),
        ("creating", "free some space and try again."),
    ],
)
def test_a_full_disk(doing, hint):
    error = write_error(OSError(errno.ENOSPC, "No space left on device"), doing, Path("runs/a"))
    assert type(error) is StoreFullError
    assert f"{doing} runs/a" in str(error)
    assert f"Hint: {hint}" in str(error)


@pytest.mark.parametrize(("doing", "hint"), [("writing", "call flush()"), ("replacing", "try")])
def test_a_disk_that_fails(doing, hint):
    error = write_error(OSError(errno.EIO, "Input/output error"), doing, Path("runs/a"))
    assert type(error) is StoreWriteError
    assert str(error).endswith(f"Hint: {hint} again once the disk responds.")
