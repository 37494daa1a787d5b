"""Fixtures of the tests of sinks."""

import pytest

from tests.sinks._trackers import INSTALLED, imported_quietly
from tests.sinks.file_helpers import KINDS
from tests.sinks.tracker_helpers import numbers


@pytest.fixture(params=KINDS)
def kind(request):
    """The ending of a file of lines."""
    return request.param


@pytest.fixture
def path(tmp_path, kind):
    """The path of a file of lines that does not exist yet."""
    return tmp_path / f"run.{kind}"


@pytest.fixture(scope="module", params=INSTALLED, ids=lambda tracker: tracker.package)
def tracker(request, tracker_folder):
    """One of the installed trackers, with a folder of its own."""
    # Workers steal tests from each other, so this may be set up more than once in one of them.
    folder = tracker_folder / f"{request.param.package}-{next(numbers)}"
    folder.mkdir()
    imported_quietly(request.param)
    return request.param(folder)
