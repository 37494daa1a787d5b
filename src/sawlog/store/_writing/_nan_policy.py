"""The ``nan`` policy of a store: allow, report or refuse values that are not a number."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sawlog.errors import NanError
from sawlog.store._format import _dtypes
from sawlog.store._writing._deferred_rows import DeferredRows


def check_nan(policy: str, values: Mapping[str, np.ndarray | DeferredRows], path: Path) -> None:
    """Apply the policy to the arrays of one call.

    Raises:
        NanError: an array contains NaN or NaT, and the policy is ``"error"``.
    """
    if policy == "allow":
        return
    for name, array in values.items():
        if array.dtype.kind in "fcVmM":
            _check(policy, name, np.asarray(array), path)


def _check(policy: str, name: str, array: np.ndarray, path: Path) -> None:
    bad = is_nan(array)
    if bad is None or not bad.any():
        return
    rows = np.flatnonzero(bad.reshape(len(array), -1).any(axis=1))
    found = f"{name!r} has values that are not numbers (NaN) in {len(rows)} of {len(array)} rows"
    if policy == "error":
        raise NanError(
            f"{found}, the first in row {rows[0]} of this call. The call was refused as a whole. "
            "Hint: find where they come from, or create the store with nan='allow'."
        )
    warnings.warn(f"{found} (store {path})", stacklevel=4)


def is_nan(array: np.ndarray) -> np.ndarray | None:
    """Return where an array is NaN or NaT, or None if its dtype has neither."""
    dtype = array.dtype
    if dtype.names is not None:
        found = [
            _within_rows(part, array) for part in map(is_nan, map(array.__getitem__, dtype.names))
        ]
        parts = [part for part in found if part is not None]
        return np.any(np.stack(parts), axis=0) if parts else None
    if dtype.kind in "mM":
        return np.isnat(array)
    if dtype.kind in "fc" or _dtypes.is_extension(dtype):
        return np.isnan(array)
    return None


def _within_rows(found: np.ndarray | None, array: np.ndarray) -> np.ndarray | None:
    """Reduce the result for a field with axes of its own to one item for each row."""
    if found is None or found.ndim == array.ndim:
        return found
    return np.asarray(found.any(axis=tuple(range(array.ndim, found.ndim))))
