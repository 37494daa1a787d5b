"""Runs, subsets, resuming and stopping."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from sawlog.errors import ArgumentError
from sawlog.jax._training.arguments import runner_of
from sawlog.jax._training.curvature import EndInfluence
from sawlog.jax._training.run_bank import RunBank
from sawlog.jax._training.run_data import Epochs, run_keys, subset_weights
from sawlog.jax._training.runner import RunScores
from tests.jax.training import programs
from tests.jax.training.small_runs import OPTIONS, X, Y, scored


def test_pairs_of_runs_have_complementary_halves():
    pairs = [subset_weights(0.5, 10, run, 3) for run in range(4)]
    np.testing.assert_array_equal(pairs[0] + pairs[1], 1)
    np.testing.assert_array_equal(pairs[2] + pairs[3], 1)
    assert not np.array_equal(pairs[0], pairs[2])
    assert subset_weights(0.3, 10, 0, 3).sum() == 3
    assert subset_weights(None, 4, 0, 0).tolist() == [1, 1, 1, 1]
    assert subset_weights(lambda run: np.full(4, run), 4, 2, 0).tolist() == [2, 2, 2, 2]


def test_each_run_has_keys_of_its_own():
    keys = [key for at in ((0, 0), (0, 1), (1, 0)) for key in run_keys(*at)]
    assert len({tuple(np.asarray(jax.random.key_data(key)).tolist()) for key in keys}) == 9


def test_a_bank_returns_the_runs_that_were_put(tmp_path):
    """Guesses are stored behind the parts of a run, and returned apart from them."""
    shapes = {"parts": (2, 2, 4), "guesses": (3, 2, 4), "metrics": (2,), "weights": (4,)}
    put = {}
    for path in (tmp_path / "runs", tmp_path / "runs"):
        bank = RunBank(path, {"format": 0})
        for run, each in put.items():
            (found,) = (one for one in bank.results(9) if one.run == run)
            for name in shapes:
                np.testing.assert_array_equal(getattr(found, name), getattr(each, name))
        for run in (5, 2) if not put else ():
            values = {name: np.random.default_rng(run).random(s) for name, s in shapes.items()}
            put[run] = RunScores(run, **values, seconds=1.0)
            bank.put(put[run])
        assert [one.run for one in bank.results(9)] == [2, 5]
        assert [one.run for one in bank.results(5)] == [2]
        bank.close()


def test_batches_have_examples_of_the_subset_and_all_others_beside_them():
    weights = np.array([1.0] * 6 + [0] * 5)
    order = Epochs(2, 3)(jax.random.key(0), weights)
    assert order.shape == (9, 4)
    for epoch in np.split(order, 3):
        assert sorted(epoch[:, :2].ravel()) == list(range(6))
        assert sorted(epoch[:, 2:].ravel()) == [-1, 6, 7, 8, 9, 10]
    again = Epochs(2, 3)(jax.random.key(1), weights)
    assert not np.array_equal(order, again)


def test_both_halves_of_an_odd_number_have_batches_of_one_shape():
    """Otherwise all that depends on the shape is compiled twice."""
    for count, size in ((13, 3), (145, 29), (9, 4)):
        weights = [subset_weights(0.5, count, run, 0) for run in (0, 1)]
        assert {int(each.sum()) for each in weights} == {count // 2, count // 2 + 1}
        orders = [Epochs(size, 2)(jax.random.key(0), each) for each in weights]
        assert orders[0].shape == orders[1].shape
        for order, own in zip(orders, weights, strict=True):
            absent = set(np.flatnonzero(own == 0).tolist())
            found = [row for row in order.ravel().tolist() if row in absent]
            assert sorted(found) == sorted([*absent, *absent])  # once in each epoch


def test_the_mean_and_its_standard_error_are_those_of_single_runs():
    several = scored(runs=4, average="mean")
    ids, names = several.ids, several.queries
    assert several.values.shape == (2, 12)
    assert several.about["runs"] == 4
    assert (ids.tolist(), names.tolist()) == (list(range(12)), [0, 1])
    np.testing.assert_allclose(several.members.mean(0), several.values)
    assert (several.standard_errors > 0).all()
    one = scored(runs=1, average="mean", ids=list("abcdefghijkl"), query_ids=["p", "q"])
    np.testing.assert_allclose(one.values, several.members[0], rtol=1e-6)
    assert one["p"][0][0] == "a"
    assert np.isnan(one.standard_errors).all()


def test_a_second_call_resumes_and_another_program_is_refused(tmp_path):
    path = tmp_path / "runs"
    begun = []

    def init(key):
        begun.append(key)
        return programs.init(key)

    own = {"path": path, "init": init, "average": "mean"}
    first = scored(runs=2, **own)
    count = len(begun)
    more = scored(runs=4, **own)
    assert len(begun) - count < 2 * count  # two runs of four, and the checks of both calls
    np.testing.assert_array_equal(more.members[:2], first.members[:2])
    np.testing.assert_array_equal(more.values, scored(runs=4, average="mean").values)
    done = len(begun)
    assert scored(runs=4, **own).about["runs"] == 4
    assert len(begun) - done == count - 2  # no run
    for changed, name in (
        ({"optimizer": optax.sgd(0.2)}, "program"),
        ({"data": (X + 1, Y)}, "data"),
        ({"epochs": 2}, "batches"),
        ({"metric": lambda p, b: -programs.loss(p, b)}, "metric"),
        ({"seed": 1}, "seed"),
    ):
        with pytest.raises(ArgumentError, match=f"another program: .*{name}.*Hint: give another"):
            scored(runs=2, path=path, **changed)


def scaled(factor):
    factor = np.asarray([factor, 1], np.float32)
    return jax.jit(lambda p, b: programs.loss(p, (b[0] * factor, b[1])))


def halves(run):
    return subset_weights(0.5, 12, run, 5)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"loss": scaled(1)}, {"loss": scaled(2)}, "program differ"),
        ({"metric": scaled(1)}, {"metric": scaled(2)}, "metric differ"),
        (
            {"subset": halves},
            {"subset": lambda run: halves(0) if run == 0 else np.ones(12)},
            "`subset` has other weights for run 1",
        ),
    ],
    ids=["constant of a jitted loss", "constant of a jitted metric", "later subset"],
)
def test_a_store_of_what_only_looks_the_same_is_refused(tmp_path, first, second, message):
    own = {"runs": 2, "path": tmp_path / "runs", "metric": programs.loss}
    scored(**{**own, **first})
    scored(**{**own, **first})
    with pytest.raises(ArgumentError, match=message):
        scored(**{**own, **second})


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_runs_of_different_lengths_are_averaged(tmp_path, stored):
    """They have different numbers of parts; so have runs with another budget."""

    def batches(key):
        steps = 2 + 30 * int(jax.random.uniform(key) < 0.3)
        return np.resize(np.arange(12), (steps, 3))

    own = {"batches": batches, "batch_size": None, "epochs": None, "average": "mean"}
    own |= {"path": tmp_path / "runs"} if stored else {}
    several = scored(runs=4, **own)
    assert {len(batches(run_keys(0, run)[1])) for run in range(4)} == {2, 32}
    left_out = ("batch_size", "epochs", "check", "progress")
    given = {name: value for name, value in OPTIONS.items() if name not in left_out}
    runner = runner_of(**given, batches=batches)
    for run in range(4):
        np.testing.assert_allclose(runner.run(run).values, several.members[run], rtol=1e-6)


def test_runs_with_another_budget_are_added(tmp_path):
    own = {"epochs": 15, "path": tmp_path / "runs"}
    scored(runs=2, memory="sqrt", **own)
    assert np.isfinite(scored(runs=4, memory="log", **own).values).all()
    found = scored(runs=4, average="mean", **own)
    expected = scored(runs=4, average="mean", epochs=15)
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "stored"])
def test_an_influence_function_that_is_not_finite_is_no_guess(tmp_path, stored, monkeypatch):
    compute, calls = EndInfluence._scores, []

    def sometimes(self, *args):
        return compute(self, *args) * (jnp.nan if len(calls) == 2 else 1)

    def scores(self, last, slopes):
        calls.append(last)
        self._compiled = jax.jit(lambda *args: sometimes(self, *args))
        return scores_of(self, last, slopes)

    scores_of = EndInfluence.scores
    monkeypatch.setattr(EndInfluence, "scores", scores)
    found = scored(runs=4, **({"path": tmp_path / "runs"} if stored else {}))
    assert np.isfinite(found.values).all()
    assert len(calls) == 4


def test_a_share_of_any_type_is_a_share():
    expected = scored(runs=2)
    np.testing.assert_array_equal(scored(runs=2, subset=np.float32(0.5)).values, expected.values)


def test_stopping_by_error_and_by_time():
    assert scored(runs=20, error=1e9).about["runs"] == 6
    assert scored(runs=20, seconds=1e-9).about["runs"] == 1
    assert scored(runs=7, error=1e-9).about["runs"] == 7


@pytest.mark.thorough
def test_runs_on_several_devices():
    together = scored(runs=4, devices=jax.devices()[:2])
    np.testing.assert_allclose(together.values, scored(runs=4).values, rtol=1e-5, atol=1e-7)
