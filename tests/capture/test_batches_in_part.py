"""What a run asks for of a batch of which some examples are logged already."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest

from sawlog.capture import _run_core
from sawlog.capture._metrics import RunMetrics
from sawlog.capture._run_core import RunCore
from sawlog.errors import LogValueError
from sawlog.run_files._options import read
from sawlog.sinks import MemorySink


class Pass:
    """Notes what it is asked for."""

    def __init__(self, todo):
        self._todo, self.asked, self.finished = np.array(todo), [], []

    def todo(self, ids):
        return self._todo

    def batch(self, request):
        self.asked.append(request)
        return SimpleNamespace(watching=contextlib.nullcontext)

    def finish(self, batch, ids):
        self.finished.append(ids.tolist())


def run_of(monkeypatch, own, evaluates=False):
    run = object.__new__(RunCore)
    run._batch, run._sampling, run._options = None, None, read(None)
    run.evaluates, run._queries = evaluates, own
    gathered = SimpleNamespace(gathered=contextlib.nullcontext)
    monkeypatch.setattr(RunCore, "_watched_model", lambda self: gathered)
    monkeypatch.setattr(RunCore, "_current_pass", lambda self: own)
    return run


@pytest.mark.parametrize("todo", [[True] * 3, [True, False, True], [False, False, True]])
def test_the_others_alone_are_captured(monkeypatch, todo):
    own = Pass(todo)
    with run_of(monkeypatch, own)([7, 5, 9], mask="m", scaler="s", views=2):
        pass
    (request,) = own.asked
    assert (request.size, request.mask, request.scaler, request.views) == (3, "m", "s", 2)
    if all(todo):
        assert request.todo is None
    else:
        assert request.todo.tolist() == todo
    assert own.finished == [[each for each, wanted in zip([7, 5, 9], todo, strict=True) if wanted]]


def test_nothing_is_captured_of_a_batch_that_is_logged(monkeypatch):
    own = Pass([False, False])
    with run_of(monkeypatch, own)([1, 2]):
        pass
    assert (own.asked, own.finished) == ([], [])


def test_queries_are_captured_whole(monkeypatch):
    own = Pass([])
    with run_of(monkeypatch, own, evaluates=True)([7, 5], mask="m", scaler="s", views=2):
        pass
    (request,) = own.asked
    assert (request.size, request.todo) == (2, None)
    assert (request.mask, request.scaler, request.views) == ("m", "s", 2)
    assert own.finished == [[7, 5]]


# -- metrics --------------------------------------------------------------------------------------


def test_a_name_is_logged_once_in_a_call(tmp_path):
    memory = MemorySink()
    metrics = RunMetrics(tmp_path, [memory])
    with pytest.raises(LogValueError, match="'a/b' is logged twice"):
        metrics.log(({"a": {"b": 1.0}, "a/b": 2.0},), {})
    assert not memory.logs
    metrics.log(({"a": {"b": 1.0, "c": [2.0, 3.0]}},), {"step": 4})
    assert {name: values.tolist() for name, values in memory.logs.items()} == {
        "a/b": [1.0],
        "a/c/0": [2.0],
        "a/c/1": [3.0],
    }


def test_metrics_do_not_change_with_the_arrays_of_the_program(tmp_path):
    memory, value = MemorySink(), np.ones(3)
    RunMetrics(tmp_path, [memory]).log(("x", value), {})
    value[:] = 0
    assert memory.logs["x"].tolist() == [[1.0, 1.0, 1.0]]


def test_sinks_of_the_user_stay_open_when_a_pass_ends(tmp_path):
    memory = MemorySink()
    metrics = RunMetrics(tmp_path, [memory])
    metrics.log(("x", 1.0), {})
    metrics.finalize()
    assert not memory.closed
    metrics.log(("x", 2.0), {})
    metrics.close()
    assert memory.closed
    assert memory.logs["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("config", [None, {}, {"compress": 3}])
def test_options_of_a_run_are_kept_unless_others_are_given(tmp_path, monkeypatch, config):
    kept = read(None, compress=5, statistic="mean")
    monkeypatch.setattr(_run_core, "load_options", lambda path: (kept, []))
    run = RunCore("run", root=tmp_path, config=config)
    assert run.options == (kept if config is None else read(config))
    monkeypatch.setattr(_run_core, "load_options", lambda path: None)
    assert RunCore("run", root=tmp_path, config=config).options == read(config)
