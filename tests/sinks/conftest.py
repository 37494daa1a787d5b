"""Fixtures of the tests of trackers."""

import pytest

from tests.sinks._trackers import INSTALLED, imported_quietly, writing_below
from tests.sinks.tracker_helpers import numbers


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Trackers write below this folder."""
    with writing_below(tmp_path_factory.mktemp("trackers")) as folder:
        yield folder


@pytest.fixture(scope="module", params=INSTALLED, ids=lambda tracker: tracker.package)
def tracker(request, environment):
    """One of the installed trackers, with a folder of its own."""
    # Workers steal tests from each other, so this may be set up more than once in one of them.
    folder = environment / f"{request.param.package}-{next(numbers)}"
    folder.mkdir()
    imported_quietly(request.param)
    return request.param(folder)
