"""The order of batches, the parts of a run, and predictions: plain numbers."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from sawlog.errors import ArgumentError
from sawlog.jax._training.replay import PARTS, ages
from sawlog.jax._training.roughness import agreement
from sawlog.jax._training.run_data import Epochs, UserBatches, subset_weights


def test_each_epoch_has_an_order_of_its_own():
    order = Epochs(2, 3)(jax.random.key(0), np.ones(7))
    assert order.shape == (9, 2)
    epochs = [each.ravel().tolist() for each in np.split(order, 3)]
    assert all(len(set(each)) == 6 for each in epochs)  # one is left over
    assert len({tuple(each) for each in epochs}) == 3
    again = Epochs(2, 3)(jax.random.key(0), np.ones(7))
    np.testing.assert_array_equal(order, again)
    assert (order != Epochs(2, 3)(jax.random.key(1), np.ones(7))).any()


def test_examples_that_are_left_out_are_distributed_over_the_batches():
    weights = np.array([1.0, 0, 1, 1, 0, 2, 0, 1, 1, 0, 0.5])
    order = Epochs(3, 2)(jax.random.key(0), weights)
    present, absent = [0, 2, 3, 5, 7, 8, 10], [1, 4, 6, 9]
    for epoch in np.split(order, 2):
        assert epoch.shape == (2, 5)  # with 4 of 6 absent ones, as halves of another number have
        assert len({*epoch[:, :3].ravel().tolist()} & {*present}) == 6
        rest = epoch[:, 3:]
        assert sorted(rest[rest >= 0].tolist()) == absent
        assert [sorted((row >= 0).tolist()) for row in rest] == [[True, True]] * 2
    small = Epochs(8, 1)(jax.random.key(0), np.array([1.0, 0, 0, 1]))
    assert sorted(small[0].tolist()) == [0, 1, 2, 3]


def test_batches_of_different_sizes_have_empty_places():
    found = UserBatches([[0, 2], [1], [], np.array([3, 1, 0])], 4)(None, np.ones(4))
    assert found.tolist() == [[0, 2, -1], [1, -1, -1], [-1, -1, -1], [3, 1, 0]]
    with pytest.raises(ArgumentError, match="indices below 3"):
        UserBatches([[0, 3]], 3)(None, np.ones(3))
    with pytest.raises(ArgumentError, match="indices below 3"):
        UserBatches(np.array([[0, -2]]), 3)(None, np.ones(3))
    with pytest.raises(ArgumentError, match="must contain integers"):
        UserBatches([[0], [0.5, 1]], 3)(None, np.ones(3))
    by_key = UserBatches(lambda key: np.full((2, 3), key), 6)
    assert by_key(5, np.ones(6)).tolist() == [[5] * 3] * 2


@pytest.mark.parametrize("segments", [1, 2, 5, 31, 32, 33, 64, 100, 1000])
def test_parts_of_a_run_double(segments):
    firsts = ages(SimpleNamespace(segments=segments))
    assert firsts[-1] == 0
    assert len(firsts) <= PARTS
    assert firsts == sorted(set(firsts), reverse=True)
    lengths = -np.diff([segments, *firsts])
    first = max(1, round(segments / 2 ** (PARTS - 1)))
    assert lengths[0] == first
    middle = lengths[1:-1].tolist()
    assert middle == [first * 2**i for i in range(len(middle))]


def test_changes_that_are_linear_are_predicted():
    """The weights stay above a tenth, so a change is not always what was drawn."""
    rng = np.random.default_rng(0)
    slopes, weights = rng.normal(size=(3, 4)), np.array([0.0, 0.2, 1.0, 0.1])
    seen = []

    def ends(run, changed):
        seen.append((run, changed))
        return 5.0 + slopes @ (changed - weights)

    result = SimpleNamespace(
        values=-slopes * len(weights), weights=weights, run="run", metrics=np.full(3, 5.0)
    )
    found = agreement(SimpleNamespace(ends=ends), result, 6, 1)
    assert found.predicted.shape == (6, 3)
    np.testing.assert_allclose(found.predicted, found.measured, atol=1e-12)
    assert found.cosine == pytest.approx(1)
    assert [run for run, _ in seen] == ["run"] * 6
    changed = np.stack([each for _, each in seen])
    assert (changed[:, 0] == 0).all()
    assert (changed >= 0.1 * weights).all()
    assert (changed == 0.1 * weights)[:, 1:].any()


def test_two_runs_have_the_halves_of_the_examples():
    runs = [subset_weights(0.5, 9, run, 3) for run in range(6)]
    assert [int(each.sum()) for each in runs] == [4, 5] * 3
    for even, odd in zip(runs[::2], runs[1::2], strict=True):
        np.testing.assert_array_equal(even + odd, np.ones(9))
    assert len({tuple(each) for each in runs}) == 6
    assert (subset_weights(0.5, 9, 0, 4) != runs[0]).any()
    np.testing.assert_array_equal(subset_weights(0.5, 9, 4, 3), runs[4])


def test_every_run_has_a_subset_of_its_own():
    runs = [subset_weights(0.3, 20, run, 3) for run in range(6)]
    assert [int(each.sum()) for each in runs] == [6] * 6
    assert len({tuple(each) for each in runs}) == 6
    table = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(subset_weights(table, 3, 1, 0), table[1])
    np.testing.assert_array_equal(subset_weights(lambda run: table[run], 3, 1, 0), table[1])
    np.testing.assert_array_equal(subset_weights(None, 3, 1, 0), np.ones(3))
    assert subset_weights(0.01, 5, 0, 0).sum() == 1
    for wrong in (lambda run: [1.0, 2], lambda run: [1.0, -1, 1]):
        with pytest.raises(ArgumentError, match="3 non-negative weights"):
            subset_weights(wrong, 3, 0, 0)
