"""What to do about examples whose logs are infinite, NaN, or too large for the stored dtype."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Sequence

import ml_dtypes
import numpy as np

from sawlog.errors import CaptureError
from sawlog.run_files._options import Options

# Half a step above the largest number of a dtype: numbers below round to a finite one.
LIMITS = {
    "float16": 65520.0,
    "bfloat16": float(ml_dtypes.finfo(ml_dtypes.bfloat16).max) * (1 + 2.0**-9),
    "float32": float(np.finfo(np.float32).max) * (1 + 2.0**-25),
    "int8": float(np.finfo(np.float32).max),
    "float64": math.inf,
}


@dataclasses.dataclass(frozen=True)
class NonFiniteRows:
    """Examples of a batch whose logs cannot be stored as numbers.

    Args:
        rows: which examples, as a mask.
        names: the logs in which they are not finite.
        overflows: whether all logs are finite, and only too large for the dtype.
    """

    rows: np.ndarray
    names: tuple[str, ...]
    overflows: bool


def rows_to_store(found: NonFiniteRows, ids: np.ndarray, options: Options) -> np.ndarray:
    """Return which examples to store, with a warning about the others.

    Raises:
        CaptureError: the options refuse such examples, or they would enter statistics.
    """
    if options.nonfinite == "error" or options.statistic:
        raise nonfinite_error(found, ids, options)
    warnings.warn(
        f"{int(found.rows.sum())} examples were left out, because their logs are not finite: "
        f"{listed(ids[found.rows])}.",
        stacklevel=6,
    )
    return ~found.rows


def check_sums(names: Sequence[str], ids: np.ndarray) -> None:
    """Raise a CaptureError if a batch makes statistics infinite or NaN."""
    if names:
        raise CaptureError(
            f"The statistics of this batch are infinite or NaN ({', '.join(names[:3])}), for the "
            f"examples {listed(ids)}. Nothing of this batch was logged. Hint: look for a loss or "
            "an input that is NaN, or overflows."
        )


def nonfinite_error(found: NonFiniteRows, ids: np.ndarray, options: Options) -> CaptureError:
    """Return an error that names the examples and says what to change."""
    examples, names = listed(ids[found.rows]), ", ".join(found.names[:3])
    head = f"The logs of {int(found.rows.sum())} of {len(ids)} examples"
    if found.overflows:
        text = (
            f"{head} have numbers too large for dtype={options.dtype!r} ({names}), of the examples "
            f"{examples}: they would be stored as infinite. Nothing of this batch was logged. "
            'Hint: run.setup(dtype="bfloat16") or "float32"'
        )
    else:
        text = (
            f"{head} are infinite or NaN ({names}), of the examples {examples}. Nothing of this "
            "batch was logged. Hint: look for a loss or an input that is NaN, or overflows"
        )
    if options.statistic:
        return CaptureError(
            f"{text}; leave these examples out of the batch, since they would enter statistics."
        )
    return CaptureError(
        f'{text}; run.setup(nonfinite="skip") leaves such examples out, "store" stores them.'
    )


def listed(ids: np.ndarray) -> str:
    """Return up to five ids as text."""
    return ", ".join(map(repr, ids[:5].tolist())) + (", ..." if len(ids) > 5 else "")


def rows_at_or_above(limit: float, logs: Iterable[tuple[str, np.ndarray]]) -> NonFiniteRows | None:
    """Return the examples with a number that is NaN or not below a limit; None without any.

    Args:
        limit: one of ``LIMITS``.
        logs: names, and their values ``[examples, ...]``.
    """
    found: dict[str, np.ndarray] = {}
    overflows = True
    for name, rows in logs:
        flat = rows.reshape(len(rows), -1)
        odd = ~(np.abs(flat) < limit).all(1)
        if odd.any():
            found[name] = odd
            overflows = overflows and bool(np.isfinite(flat).all())
    if not found:
        return None
    return NonFiniteRows(np.any(list(found.values()), axis=0), tuple(found), overflows)
