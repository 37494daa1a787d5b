"""Numbers too large for a dtype are those that would be stored as infinite, and no others."""

import ml_dtypes
import numpy as np
import pytest

from sawlog.capture._nonfinite import LIMITS, rows_at_or_above
from sawlog.run_files._encode import BYTES, decode, encode

WIDE = {"float16": np.float32, "bfloat16": np.float64, "float32": np.float64, "int8": np.float32}


def test_each_dtype_has_a_limit():
    assert LIMITS.keys() == set(BYTES)


def _around(dtype):
    """Numbers in one wider dtype next to the greatest, and next to where rounding overflows."""
    kind = {"bfloat16": ml_dtypes.bfloat16, "int8": np.float32}.get(dtype, dtype)
    greatest = WIDE[dtype](ml_dtypes.finfo(kind).max)
    if dtype == "int8":
        return [greatest]
    step = greatest - WIDE[dtype](np.nextafter(np.array(greatest, kind), np.array(0, kind)))
    middle = greatest + step / 2  # rounds to even, which is infinite
    return [greatest, WIDE[dtype](middle * (1 - 2.0**-16)), middle, greatest + step]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_refused_is_what_would_be_infinite(dtype, sign):
    for value in _around(dtype):
        rows = np.ones((3, 2, 2), WIDE[dtype])
        rows[1, 0, 1] = sign * value
        with np.errstate(over="ignore"):
            stored = decode(encode("grad/w", rows, dtype), "grad/w")
        overflows = ~np.isfinite(stored).all((1, 2))
        found = rows_at_or_above(LIMITS[dtype], [("grad/v", rows[:, 0, :1]), ("grad/w", rows)])
        assert overflows.tolist() == [False, bool(overflows[1]), False]
        if overflows[1]:
            assert found is not None
            assert found.rows.tolist() == overflows.tolist()
            assert (found.names, found.overflows) == (("grad/w",), True)
        else:
            assert found is None


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_and_is_no_overflow(dtype, value):
    rows = np.ones((3, 2))
    rows[2, 1] = value
    found = rows_at_or_above(LIMITS[dtype], [("grad/v", np.ones((3, 2))), ("grad/w", rows)])
    assert found is not None
    assert (found.rows.tolist(), found.names) == ([False, False, True], ("grad/w",))
    assert not found.overflows
