"""Which examples have logs that are infinite, NaN, or too large for the stored dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from sawlog._array_device import to_numpy
from sawlog.capture._nonfinite import NonFiniteRows
from sawlog.run_files._statistics import Staged

#: Numbers from here on round to infinity: half a step above the largest number of a dtype.
_LIMITS = {
    "float16": 65520.0,
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max) * (1 + 2.0**-9),
    "float32": float(np.finfo(np.float32).max) * (1 + 2.0**-25),
    "int8": float(np.finfo(np.float32).max),
    "float64": math.inf,
}


def nonfinite_rows(logs: Mapping[str, Any], dtype: str) -> NonFiniteRows | None:
    """Return the examples whose logs are not finite once stored; None if all are finite."""
    limit = _LIMITS[dtype]
    found: dict[str, np.ndarray] = {}
    overflows = True
    for name, rows in logs.items():
        flat = np.asarray(rows).reshape(len(rows), -1)
        odd = ~(np.abs(flat) < limit).all(1)
        if odd.any():
            found[name] = odd
            overflows = overflows and bool(np.isfinite(flat).all())
    if not found:
        return None
    return NonFiniteRows(np.any(list(found.values()), axis=0), tuple(found), overflows)


def nonfinite_sums(staged: Staged) -> Sequence[str]:
    """Return the names of statistics that a batch would make infinite or NaN."""
    sums = [(name, array) for name, array, _ in staged.sums]
    return [n for n, array in (*sums, *staged.rows) if not np.isfinite(to_numpy(array)).all()]
