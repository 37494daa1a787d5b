"""The bank of retrained models: reuse, several processes, kills, and what is refused."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import ArgumentError, StoreNotFoundError
from sawlog.influence import Bank, validate
from sawlog.influence._validation import _bank
from sawlog.influence._validation._subset import random_subsets
from sawlog.influence._validation._trainer import Trainer
from tests.influence.retraining import QUERIES, N, Q, exact_scores, train


def test_a_bank_is_reused_and_extended(tmp_path):
    calls = []

    def counted(ids, seed):
        calls.append((len(ids), seed))
        return train(ids, seed)

    path = tmp_path / "bank"
    first = validate(exact_scores(), counted, bank=path, subsets=6, seeds=2, groups=None)
    assert len(calls) == len(set(calls)) == len(Bank(path)) == 12
    again = validate(-exact_scores().values, counted, bank=path, subsets=6, seeds=2, groups=None)
    assert len(calls) == 12
    assert again.validation.lds == -first.validation.lds
    validate(exact_scores(), counted, bank=path, subsets=8, seeds=3, groups=None)
    assert len(calls) == len(set(calls)) == 24
    assert repr(Bank(path)) == f"Bank({str(path)!r}, 40 examples, 5 queries, 24 models)"
    with store.open(path) as reader:  # any reader of stores can read it
        rows = reader.gather(reader.ids())
    assert rows["answers"].shape == (24, Q)
    assert set(rows["seed"].tolist()) == {seed for _, seed in calls}


def test_a_bank_is_filled_before_there_are_scores(tmp_path):
    bank = Bank(tmp_path / "bank", ids=np.arange(N), queries=QUERIES)
    assert bank.retrain(train, subsets=6, seeds=2, drop=0.3) == 12
    assert bank.retrain(train, subsets=6, seeds=2, drop=0.3) == 0
    found = validate(exact_scores(), bank=bank, drop=0.3)
    wanted = validate(exact_scores(), train, subsets=6, seeds=2, drop=0.3, groups=None)
    assert found.validation == wanted.validation


def test_without_training_only_what_the_bank_has(tmp_path):
    path = tmp_path / "bank"
    bank = Bank(path, ids=np.arange(N), queries=QUERIES)
    with pytest.raises(ArgumentError, match="has 0 random subsets without 50%"):
        validate(exact_scores(), bank=path)
    subsets = random_subsets(N, 0.5, 6, draw=0)
    trainer = Trainer(train, None, 1, bank.ids, bank.queries)
    assert bank.fill(subsets[:4], 1, trainer) == 4
    with pytest.raises(ArgumentError, match=r"has 4 random subsets .* at least 5"):
        validate(exact_scores(), bank=path)
    assert bank.fill(subsets, 2, trainer) == 8
    found = validate(exact_scores(), bank=bank).validation
    assert (found.subsets, found.models, found.groups) == (6, 12, ())
    with pytest.raises(ArgumentError, match=r"It has subsets with drop=0.5\. Hint"):
        validate(exact_scores(), bank=path, drop=0.2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings": {"lr": 0.2}}, r"has settings=\{'lr': 0.1\}; got \{'lr': 0.2\}"),
        ({"better": "higher"}, "has better='lower'; got 'higher'"),
        ({"ids": np.arange(N - 1)}, "one of other training examples: it has also 39"),
        ({"ids": np.arange(N) + 1}, "one of other training examples: it does not have 40"),
        ({"queries": ["q0", "r"]}, "one of other queries: it does not have 'r'"),
    ],
)
def test_another_bank_is_refused(tmp_path, change, message):
    own = {"ids": np.arange(N), "queries": QUERIES, "settings": {"lr": 0.1}}
    Bank(tmp_path / "tuple", **{**own, "settings": {"sizes": (1, 2)}})
    Bank(tmp_path / "bank", **own)
    Bank(tmp_path / "bank")
    Bank(tmp_path / "bank", **own)
    with pytest.raises(ArgumentError, match=message):
        Bank(tmp_path / "bank", **{**own, **change})


def test_other_stores_are_not_banks(tmp_path):
    store.create(tmp_path / "other").close()
    with pytest.raises(ArgumentError, match="is not a bank of retrained models"):
        validate(exact_scores(), bank=tmp_path / "other")
    with pytest.raises(StoreNotFoundError):
        validate(exact_scores(), bank=tmp_path / "missing")


def test_threads_fill_one_bank_together(tmp_path, monkeypatch):
    monkeypatch.setattr(_bank, "ASK_AGAIN", 0.0)
    bank = Bank(tmp_path / "bank", ids=np.arange(N), queries=QUERIES)
    subsets, trained = random_subsets(N, 0.5, 10, draw=0), []

    def fill():
        trainer = Trainer(train, None, 1, bank.ids, bank.queries)
        trained.append(bank.fill(subsets, 2, trainer))

    threads = [threading.Thread(target=fill) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trained) == 3
    assert sum(trained) == 20
    models = bank.models()
    assert len(models.keys) == len(bank) == 20
    for key, subset, answers in zip(models.keys, models.subsets, models.answers, strict=True):
        repeat = int(key.rpartition("-")[2])
        wanted = train(np.flatnonzero(~subset.left_out), subset.seed(repeat))
        np.testing.assert_array_equal(answers, wanted)


FILLER = """
import sys, time
from tests.influence import retraining as r
from sawlog import influence
def slow(ids, seed):
    time.sleep(0.05)
    return r.train(ids, seed)
influence.validate(r.influence(), slow, bank=sys.argv[1], queries=r.QUERIES, subsets=30, seeds=2,
                   groups=None)
"""


def test_killed_fillers_lose_little_and_others_continue(tmp_path):
    path = tmp_path / "bank"
    both = [subprocess.Popen([sys.executable, "-c", FILLER, str(path)]) for _ in range(2)]
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        assert [each.poll() for each in both] == [None, None]
        if path.exists() and (path / "store.json").exists() and len(Bank(path)) >= 4:
            break
        time.sleep(0.02)
    for each in both:
        os.kill(each.pid, signal.SIGKILL)
        each.wait()
    kept = len(Bank(path))
    assert 4 <= kept < 60
    calls = []

    def counted(ids, seed):
        calls.append(seed)
        return train(ids, seed)

    found = validate(exact_scores(), counted, bank=path, subsets=30, seeds=2, groups=None)
    assert len(calls) == 60 - kept
    alone = validate(exact_scores(), train, subsets=30, seeds=2, groups=None)
    assert found.validation == alone.validation
