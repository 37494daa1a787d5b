"""Eigenvectors that rounding errors do not choose."""

import numpy as np

from sawlog.factored import eigh


def test_a_multiple_of_the_identity_has_the_axes():
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.normal(size=(5, 3)))[0].astype(np.float32)
    once, twice = (0.3 * turned.T @ turned + 1e-8 * rng.normal(size=(3, 3)) for _ in range(2))
    for moment in (once, twice):
        values, vectors = eigh((moment + moment.T) / 2)
        np.testing.assert_array_equal(vectors, np.eye(3))
        np.testing.assert_allclose(values, 0.3, rtol=1e-5)


def test_other_matrices_of_a_stack_have_their_own_vectors():
    stack = np.stack([np.eye(2), np.array([[2.0, 1.0], [1.0, 2.0]]), np.zeros((2, 2))])
    values, vectors = eigh(stack)
    np.testing.assert_allclose(
        np.einsum("gij,gj,gkj->gik", vectors, values, vectors), stack, atol=1e-12
    )
    np.testing.assert_array_equal(vectors[0], np.eye(2))
    assert eigh(np.zeros((0, 0)))[1].shape == (0, 0)
