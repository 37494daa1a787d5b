"""Processes that share a store of runs: each run is trained once, also after a kill."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import optax
import pytest

from sawlog import store
from sawlog.errors import ReplayError
from sawlog.influence import through_training
from sawlog.jax._training.run_bank import RunBank
from sawlog.jax._training.runner import Runner, RunScores
from tests.jax.training import programs

RUNS = 6
LIMIT = 240  # seconds

PROGRAM = """
import json, pathlib, sys, time
import numpy as np
from sawlog.jax._training.runner import Runner
from tests.jax.training import test_shared_runs as t
folder, name, how = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
trained, train = [], Runner.run
def run(self, number, *more):
    trained.append(number)
    (folder / (name + ".json")).write_text(json.dumps(trained))
    if how == "hang":
        time.sleep(600)
    time.sleep(0.2)
    return train(self, number, *more)
Runner.run = run
np.save(folder / (name + ".npy"), t.scored(folder / "runs").values)
"""


def scored(path, **options):
    x, y = programs.data()
    given = {
        "init": programs.init,
        "loss": programs.loss,
        "optimizer": optax.sgd(0.1),
        "batch_size": 2,
        "epochs": 1,
        "runs": RUNS,
    }
    options = {**given, "check": False, "progress": False, **options}
    return through_training((x, y), (x[:2], y[:2]), path=path, **options)


@pytest.fixture
def processes(tmp_path):
    begun = []

    def begin(name, how="train"):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), name, how]
        begun.append(subprocess.Popen(command, env={**os.environ, "JAX_PLATFORMS": "cpu"}))
        return begun[-1]

    yield begin
    for each in begun:
        if each.poll() is None:
            each.kill()
        each.wait()


def wait_for(condition):
    limit = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.02)


def trained(folder, name):
    path = folder / f"{name}.json"
    return json.loads(path.read_text() or "[]") if path.exists() else []


def stored(path):
    if not (path / "store.json").exists():
        return []
    with store.open(path) as reader:
        return reader.ids().tolist() if reader.schema.tables else []


@pytest.mark.thorough
def test_two_processes_share_the_runs(tmp_path, processes):
    both = [processes(name) for name in "ab"]
    assert [each.wait(LIMIT) for each in both] == [0, 0]
    runs = [trained(tmp_path, name) for name in "ab"]
    assert sorted([*runs[0], *runs[1]]) == list(range(RUNS))
    expected = scored(None).values
    for name in "ab":
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), expected)
    assert not list((tmp_path / "runs" / "tmp").iterdir())


def test_the_run_of_a_killed_process_is_taken_over(tmp_path, processes, monkeypatch):
    other, path, mine, train = processes("a", "hang"), tmp_path / "runs", [], Runner.run
    wait_for(lambda: trained(tmp_path, "a") == [0])

    def run(self, number):
        mine.append((number, other.poll()))
        return train(self, number)

    def kill():
        wait_for(lambda: len(stored(path)) == RUNS - 1)
        os.kill(other.pid, signal.SIGKILL)

    monkeypatch.setattr(Runner, "run", run)
    killer = threading.Thread(target=kill)
    killer.start()
    found = scored(path)
    killer.join()
    assert mine[:-1] == [(number, None) for number in range(1, RUNS)]
    assert mine[-1][0] == 0
    np.testing.assert_array_equal(found.values, scored(None).values)


def test_a_call_whose_time_is_over_does_not_wait_for_others(tmp_path):
    path = tmp_path / "runs"
    scored(path, runs=1)
    about = store.open(path).meta["through_training"]
    other = RunBank(path, about)
    assert other.take(RUNS, 1) == [1]
    found = scored(path, seconds=1e-6)
    assert found.about["runs"] == 1
    assert len(stored(path)) == 1
    other.close()
    assert scored(path).about["runs"] == RUNS


def scores_of(run):
    random = np.random.default_rng(run)
    parts, weights = random.normal(size=(2, 2, 8)), np.arange(8) % 2.0
    return RunScores(run, parts, parts[:1], np.ones(2), weights if run % 2 else 1 - weights, 1.0)


def test_runs_are_averaged_as_pairs_in_whichever_order_they_finish(tmp_path):
    """Runs 2 and 3 belong together, and 1 and 2 do not, also while run 0 is missing."""
    banks = [RunBank(tmp_path / name, {}) for name in "ab"]
    for bank, runs in zip(banks, ((0, 1, 2, 4, 5, 6), (4, 6, 5, 1, 0, 2)), strict=True):
        for run in runs:
            bank.put(scores_of(run))
    first, second = (bank.average(9, "robust", paired=True) for bank in banks)
    np.testing.assert_array_equal(first.values, second.values)
    order = RunBank(None, {})
    for place, run in enumerate((0, 1, 4, 5)):
        each = scores_of(run)
        order.put(RunScores(place, each.parts, each.guesses, each.metrics, each.weights, 1.0))
    for place, run in ((4, 2), (5, 6)):
        each = scores_of(run)
        order.put(RunScores(place, each.parts, each.guesses, each.metrics, each.weights, 1.0))
    expected = order.average(9, "robust", paired=True)
    np.testing.assert_array_equal(first.values, expected.values)
    np.testing.assert_array_equal(first.errors, expected.errors)
    for bank in banks:
        bank.close()


def test_the_final_state_is_compared_also_if_run_0_is_stored(tmp_path):
    path = tmp_path / "runs"
    scored(path, runs=2)
    wrong = (programs.init(jax.random.key(0)), optax.sgd(0.1).init(None))
    with pytest.raises(ReplayError, match="does not end in `final_state`"):
        scored(path, runs=2, final_state=wrong)
