"""Several files at once: nothing differs from one after the other, and nothing is left behind."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from sawlog._array_device import NUMPY, TORCH_CPU, ArrayDevice
from sawlog.influence import _threads as threads
from sawlog.influence import attribute
from sawlog.influence._scoring_job import ScoringJob
from tests.influence.stores import by_hand, written


def limits():
    known = [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]
    return [*known, torch.get_num_threads()]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with threadpool_limits(2, user_api="blas"):
        yield
    torch.set_num_threads(before)


@pytest.fixture
def rows(tmp_path):
    """Small whole numbers, so that there are ties, in thirteen files."""
    rows = {"w": np.random.default_rng(0).integers(-2, 3, (50, 3)).astype(np.float32)}
    written(tmp_path / "logs", rows, np.arange(50), "float32", each=4)
    return rows["w"].astype(float)


@pytest.mark.turns(2)
@pytest.mark.parametrize("cores", [1, 2, 3, 40])
@pytest.mark.parametrize("sign", ["positive", "absolute"])
@pytest.mark.parametrize("device", ["numpy", "cpu", None])
def test_any_number_of_threads(tmp_path, monkeypatch, rows, cores, sign, device):
    monkeypatch.setattr(threads, "cores", lambda place: cores)
    before, queries = limits(), {"w": rows[:7]}
    expected, options = rows[:7] @ rows.T, {"curvature": "identity", "device": device}
    scores = attribute(tmp_path / "logs", queries, **options)
    assert scores.ids.tolist() == list(range(50))
    np.testing.assert_array_equal(scores.values, expected)
    best = attribute(tmp_path / "logs", queries, top_k=5, sign=sign, **options)
    for query, pairs in enumerate(by_hand(expected, range(50), 5, sign)):
        assert best[query] == pairs
    assert limits() == before


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.usefixtures("two_threads")
def test_without_new_threads(tmp_path, monkeypatch, rows, device):
    """At the end of a program, and where there are too many threads, the caller scores."""
    before = limits()

    def refused(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threads, "cores", lambda place: 2)
        patch.setattr(ThreadPoolExecutor, "_adjust_thread_count", refused)
        scores = attribute(tmp_path / "logs", {"w": rows}, curvature="identity", device=device)
    np.testing.assert_array_equal(scores.values, rows @ rows.T)
    assert limits() == before


@pytest.mark.parametrize(("device", "own"), [("numpy", slice(-1)), ("cpu", slice(-1, None))])
@pytest.mark.usefixtures("two_threads")
def test_products_take_one_core_each_and_then_all_again(tmp_path, monkeypatch, rows, device, own):
    assert threads.cores() == threads.cores(TORCH_CPU) == 2
    seen, plain = [], ScoringJob.run

    def run(work, part, *stop):
        seen.append((threading.current_thread().name, limits()[own]))
        return plain(work, part, *stop)

    monkeypatch.setattr(ScoringJob, "run", run)
    attribute(tmp_path / "logs", {"w": rows[:1]}, curvature="identity", device=device)
    assert len(seen) == 8
    assert {name.partition("_")[0] for name, _ in seen} == {"sawlog-scores"}
    assert {each for _, limit in seen for each in limit} == {1}
    assert set(limits()) == {2}
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 2


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.usefixtures("two_threads")
def test_two_calls_at_once_leave_the_limits_as_they_were(tmp_path, rows, device):
    options = {"curvature": "identity", "device": device}
    with ThreadPoolExecutor(4) as pool:
        ask = lambda _: attribute(tmp_path / "logs", {"w": rows[:2]}, **options).values
        for values in pool.map(ask, range(12)):
            np.testing.assert_array_equal(values, rows[:2] @ rows.T)
    assert set(limits()) == {2}


def test_one_core_of_the_program_is_one_core_here():
    with threadpool_limits(1, user_api="blas"), threads.several(10) as (pool, workers):
        assert pool is None
        assert workers == 1


@pytest.mark.parametrize(("cores", "files", "each"), [(8, 3, 2), (8, 2, 4), (5, 9, 1), (7, 7, 1)])
@pytest.mark.parametrize("place", [NUMPY, TORCH_CPU])
def test_cores_that_are_left_go_to_the_products(monkeypatch, cores, files, each, place):
    monkeypatch.setattr(threads, "cores", lambda place: cores)
    seen = []
    for name in ("_limited", "_limited_torch"):

        @contextlib.contextmanager
        def limited(count, name=name):
            seen.append((name, count))
            yield None

        monkeypatch.setattr(threads, name, limited)
    with threads.several(files, place) as (pool, workers):
        assert pool is not None
        assert workers == min(cores, files)
    assert seen == [("_limited" if place == NUMPY else "_limited_torch", each)]


def test_a_device_is_busy_with_one_part():
    with threads.several(10, ArrayDevice("torch", "cuda:0")) as (pool, workers):
        assert (pool, workers) == (None, 1)


def test_an_error_stops_the_other_threads(tmp_path, monkeypatch, rows):
    """They do not go on to the end of their parts, which may take hours."""
    monkeypatch.setattr(threads, "cores", lambda place: 2)
    seen, stops, plain, run = [], [], ScoringJob._pieces, ScoringJob.run
    another = threading.Event()

    def noted(work, part, stop):
        stops.append(stop)
        return run(work, part, stop)

    def pieces(work, part):
        for piece in plain(work, part):
            if part[0] == 0:
                assert another.wait(120)
                raise OSError("the disk is gone")
            another.set()
            assert stops[0].wait(120)
            for _ in range(3):
                seen.append(part)
                yield piece

    monkeypatch.setattr(ScoringJob, "run", noted)
    monkeypatch.setattr(ScoringJob, "_pieces", pieces)
    before = limits()
    with pytest.raises(OSError, match="the disk is gone"):
        attribute(tmp_path / "logs", {"w": rows[:1]}, curvature="identity")
    assert len(seen) == len(set(seen))  # of no part a second piece
    assert seen
    assert limits() == before
