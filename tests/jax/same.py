"""Two logdicts that must say the same."""

from typing import Any

import jax
import numpy as np


def same_logs_as(found: Any, expected: Any, rtol: float = 1e-6) -> None:
    """The same keys, masks, and values and steps where something was logged."""
    assert set(found) == set(expected)
    assert {name: set(keys) for name, keys in found.steps.items()} == {
        name: set(keys) for name, keys in expected.steps.items()
    }
    for key in expected:
        mask = np.asarray(expected.mask[key])
        np.testing.assert_array_equal(found.mask[key], mask, err_msg=f"mask of {key!r}")
        _same_where(found[key], expected[key], mask, repr(key), rtol)
        for name, by_key in expected.steps.items():
            if key in by_key:
                _same_where(found.steps[name][key], by_key[key], mask, f"{name} of {key!r}", rtol)


def _same_where(found: Any, expected: Any, mask: np.ndarray, what: str, rtol: float) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected), what
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.asarray(one).dtype == np.asarray(two).dtype, what
        np.testing.assert_allclose(
            np.asarray(one)[mask], np.asarray(two)[mask], rtol=rtol, err_msg=what
        )


def gaps(logs: Any) -> set[str]:
    """The keys some of whose entries were not logged."""
    return {key for key, mask in logs.mask.items() if not np.all(mask)}
