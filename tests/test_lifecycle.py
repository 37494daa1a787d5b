"""How resources end: after a block, and at the end of the program."""

import gc
import warnings

import pytest

from sawlog import _lifecycle
from sawlog._lifecycle import CloseOnExit, Stage, at_exit, close_at_exit


class Resource(CloseOnExit):
    def __init__(self, trouble=None):
        self.calls, self.trouble = [], trouble

    def close(self):
        self.calls.append("close")
        if self.trouble is not None:
            raise self.trouble

    def fail(self):
        self.calls.append("fail")

    def __repr__(self):
        return "Resource()"


@pytest.fixture
def registry(monkeypatch):
    """An empty registry, which is run by hand."""
    monkeypatch.setattr(_lifecycle, "_registered", {})
    monkeypatch.setattr(_lifecycle.atexit, "register", lambda function: None)
    monkeypatch.setattr(_lifecycle.atexit, "unregister", lambda function: None)
    return _lifecycle._run_all


def test_a_block_that_ends():
    with Resource() as resource:
        assert resource.calls == []
    assert resource.calls == ["close"]
    with pytest.raises(OSError, match="full"), Resource(OSError("full")):
        pass


@pytest.mark.parametrize("trouble", [None, OSError("full")])
def test_the_first_error_is_never_hidden(trouble):
    resource = Resource(trouble)
    with pytest.raises(ZeroDivisionError) as caught, resource:
        1 / 0  # noqa: B018
    assert resource.calls == ["fail", "close"]
    notes = getattr(caught.value, "__notes__", [])
    assert notes == ([] if trouble is None else ["Resource() could not be closed either: full"])


def test_the_end_of_the_program(registry):
    seen = []
    at_exit(lambda: seen.append("store"), Stage.STORES)
    at_exit(lambda: seen.append("sink 1"))
    cancel = at_exit(lambda: seen.append("cancelled"))
    at_exit(lambda: seen.append("display"), Stage.DISPLAYS)
    at_exit(lambda: seen.append("sink 2"))
    at_exit(lambda: seen.append("run"), Stage.RUNS)
    cancel()
    cancel()
    registry()
    assert seen == ["run", "sink 2", "sink 1", "display", "store"]
    registry()
    assert len(seen) == 5


def test_what_fails_stops_nothing_else(registry):
    seen = []

    def interrupt():
        raise KeyboardInterrupt

    def fail():
        raise OSError("full")

    at_exit(lambda: seen.append("store"), Stage.STORES)
    at_exit(fail)
    at_exit(interrupt, Stage.RUNS)
    with pytest.warns(UserWarning, match="full"), pytest.raises(KeyboardInterrupt):
        registry()
    assert seen == ["store"]


def test_what_is_registered_while_it_runs(registry):
    seen = []
    at_exit(lambda: at_exit(lambda: seen.append("late"), Stage.STORES), Stage.RUNS)
    registry()
    assert seen == ["late"]


@pytest.mark.parametrize("ended", [None, ValueError("uncaught")])
def test_closing_at_the_end(registry, monkeypatch, ended):
    monkeypatch.setattr("sys.last_value", ended, raising=False)
    resource, other, gone = Resource(), Resource(OSError("full")), Resource()
    for each in (resource, other, gone):
        close_at_exit(each)
    calls = gone.calls
    del gone, each
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        registry()
    assert resource.calls == other.calls == ([] if ended is None else ["fail"]) + ["close"]
    assert calls == []
    assert ["closing it now failed: full" in str(each.message) for each in caught] == [True]
