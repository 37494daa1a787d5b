"""Fixtures of the tests of trackers."""

import pytest

from tests.sinks._trackers import ENVIRONMENT, FOLDERS, INSTALLED, imported_quietly
from tests.sinks.tracker_helpers import numbers


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Trackers write below this folder."""
    folder = tmp_path_factory.mktemp("trackers")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        for name, value in FOLDERS.items():
            patch.setenv(name, str(folder / value))
        yield folder


@pytest.fixture(scope="module", params=INSTALLED, ids=lambda tracker: tracker.package)
def tracker(request, environment):
    """One of the installed trackers, with a folder of its own."""
    # Workers steal tests from each other, so this may be set up more than once in one of them.
    folder = environment / f"{request.param.package}-{next(numbers)}"
    folder.mkdir()
    imported_quietly(request.param)
    return request.param(folder)
