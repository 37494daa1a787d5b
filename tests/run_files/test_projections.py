"""What blocks are projected with: made again wherever it is needed, so it must be the same."""

import numpy as np
import pytest

from sawlog import store
from sawlog.errors import ArgumentError
from sawlog.factored import principal, random_projection
from sawlog.run_files._blocks import Block
from sawlog.run_files._measured import Measured
from sawlog.run_files._options import Compression, Options
from sawlog.run_files._projections import projection_of, projections_of

PLAIN = Block("a.weight", ("a.weight",), (6, 8), "right", (2, 3))
GROUPS = Block("c.weight", ("c.weight",), (3, 6, 8), "right", (2, 3))


@pytest.mark.parametrize("kind", ["orthonormal", "gaussian"])
def test_sides_have_matrices_of_their_own(kind):
    how = Compression(kind=kind, rank=3, seed=4)
    found = projection_of(PLAIN, how, None)
    for side, size, rank in (("left", 6, 2), ("right", 8, 3)):
        expected = random_projection(kind, size, rank, seed=4, name=f"a.weight/{side}")
        np.testing.assert_array_equal(getattr(found, side), expected)
    other = projection_of(PLAIN, Compression(kind=kind, rank=3, seed=5), None)
    assert not np.allclose(found.left, other.left)


def test_groups_have_matrices_of_their_own():
    found = projection_of(GROUPS, Compression(rank=3), None)
    assert (found.left.shape, found.right.shape) == ((3, 6, 2), (3, 8, 3))
    for side, size, rank in (("left", 6, 2), ("right", 8, 3)):
        for i, own in enumerate(getattr(found, side)):
            name = f"c.weight/{side}/{i}"
            expected = random_projection("orthonormal", size, rank, seed=0, name=name)
            np.testing.assert_array_equal(own, expected)


def test_sides_that_stay_whole():
    for ranks in ((None, 3), (2, None), (None, None)):
        block = Block("a.weight", ("a.weight",), (6, 8), "right", ranks)
        found = projection_of(block, Compression(rank=3), None)
        assert [found.left is None, found.right is None] == [rank is None for rank in ranks]
    assert projection_of(PLAIN, None, None).left is None


def moments(*shape):
    rows = np.random.default_rng(sum(shape)).normal(size=(*shape[:-1], 50, shape[-1]))
    rows *= np.arange(1, shape[-1] + 1)
    return np.swapaxes(rows, -1, -2) @ rows


def measured(block, left, right):
    arrays = {f"sum/kfac.left/{block.name}": (left, 1), f"sum/kfac.right/{block.name}": (right, 1)}
    return Measured(arrays, [block], 1)


def test_main_directions_of_each_side_and_group():
    left, right = moments(6), moments(8)
    found = projection_of(PLAIN, Compression(kind="pca", rank=3), measured(PLAIN, left, right))
    np.testing.assert_array_equal(found.left, principal(left, 2))
    np.testing.assert_array_equal(found.right, principal(right, 3))
    left, right = moments(3, 6), moments(3, 8)
    found = projection_of(GROUPS, Compression(kind="pca", rank=3), measured(GROUPS, left, right))
    for i in range(3):
        np.testing.assert_array_equal(found.left[i], principal(left[i], 2))
        np.testing.assert_array_equal(found.right[i], principal(right[i], 3))
    half = Block("a.weight", ("a.weight",), (6, 8), "right", (None, 3))
    found = projection_of(half, Compression(kind="pca", rank=3), measured(half, left[0], right[0]))
    assert found.left is None
    np.testing.assert_array_equal(found.right, principal(right[0], 3))


def test_main_directions_need_covariances_of_whole_gradients():
    how = Compression(kind="pca", rank=3)
    with pytest.raises(ArgumentError, match="needs covariances, which are missing"):
        projection_of(PLAIN, how, None)
    with pytest.raises(ArgumentError, match="have size 2 instead of 6"):
        projection_of(PLAIN, how, measured(PLAIN, moments(2), moments(8)))
    other = Block("b.weight", ("b.weight",), (6, 8), "right")
    with pytest.raises(ArgumentError, match=r"needs covariances\. .*'a\.weight'"):
        projection_of(PLAIN, how, measured(other, moments(6), moments(8)))


def test_those_of_a_store(tmp_path):
    """By its notes alone, whatever the order of the blocks."""
    options = Options(compress=Compression(rank=3, seed=9))
    for blocks in ([PLAIN, GROUPS], [GROUPS, PLAIN]):
        path = tmp_path / blocks[0].name
        meta = {"blocks": [each.to_json() for each in blocks], "options": options.to_json()}
        store.create(path, meta=meta).close()
        with store.open(path) as reader:
            found = projections_of(reader)
        assert list(found) == [each.name for each in blocks]
        for block in blocks:
            expected = projection_of(block, options.compress, None)
            np.testing.assert_array_equal(found[block.name].left, expected.left)
            np.testing.assert_array_equal(found[block.name].right, expected.right)
