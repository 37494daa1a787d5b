"""Which examples have logs that are infinite, NaN, or too large for the stored dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog._array_device import to_numpy
from sawlog.capture._nonfinite import LIMITS, NonFiniteRows, rows_at_or_above
from sawlog.run_files._statistics import Staged


def nonfinite_rows(logs: Mapping[str, Any], dtype: str) -> NonFiniteRows | None:
    """Return the examples whose logs are not finite once stored; None if all are finite."""
    arrays = ((name, np.asarray(rows)) for name, rows in logs.items())
    return rows_at_or_above(LIMITS[dtype], arrays)


def nonfinite_sums(staged: Staged) -> Sequence[str]:
    """Return the names of statistics that a batch would make infinite or NaN."""
    sums = [(name, array) for name, array, _ in staged.sums]
    return [n for n, array in (*sums, *staged.rows) if not np.isfinite(to_numpy(array)).all()]
