"""Find logs that are infinite, NaN, or too large for the dtype they are stored in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sawlog._array_device import to_numpy
from sawlog.capture._nonfinite import LIMITS, NonFiniteRows, rows_at_or_above
from sawlog.errors import CaptureError
from sawlog.run_files._statistics import Staged
from sawlog.torch._rows._outer_product_rows import OuterProductRows


def nonfinite_rows(logs: Mapping[str, Any], dtype: str) -> NonFiniteRows | None:
    """Return the examples whose logs are not finite once stored; None if all are finite."""
    limit = LIMITS[dtype]
    doubtful = ((name, rows) for name, rows in logs.items() if not _below(rows, limit))
    return rows_at_or_above(limit, ((name, _array(rows)) for name, rows in doubtful))


def _array(rows: Any) -> np.ndarray:
    made = rows.multiplied() if isinstance(rows, OuterProductRows) else rows
    return to_numpy(made.reshape(len(made), -1))


def _below(rows: Any, limit: float) -> bool:
    """Return whether all numbers are certainly below a limit; False if one is NaN."""
    if isinstance(rows, OuterProductRows):
        return _greatest(rows._left) * _greatest(rows._right) < limit
    return _greatest(rows) < limit


def _greatest(tensor: Tensor) -> float:
    if not tensor.numel():
        return 0.0
    least, most = torch.aminmax(tensor)
    return max(abs(float(least)), abs(float(most))) if not math.isnan(float(most)) else math.nan


def check_finite(gradients: Mapping[str, Tensor | None]) -> None:
    """Raise a CaptureError if a gradient of a batch is not finite: nothing can be proven then."""
    odd = [n for n, each in gradients.items() if each is not None and not _is_finite(each)]
    if odd:
        raise CaptureError(
            f"The gradients of this batch are infinite or NaN ({', '.join(odd[:3])}), so those "
            "of its examples cannot be separated. Nothing of this batch was logged. Hint: "
            "search for a loss or input that is NaN or overflows; start with a batch without it."
        )


def _is_finite(tensor: Tensor) -> bool:
    return math.isfinite(_greatest(tensor))


def nonfinite_sums(staged: Staged) -> Sequence[str]:
    """Return the names of statistics that a batch would make infinite or NaN."""
    sums = [(name, array) for name, array, _ in staged.sums]
    return [name for name, array in (*sums, *staged.rows) if not _finite(array)]


def _finite(array: Tensor) -> bool:
    if array.ndim > 1 and array.shape[-1] == array.shape[-2]:
        array = array.diagonal(dim1=-2, dim2=-1)  # a second moment: the diagonal bounds it
    return _is_finite(array)
