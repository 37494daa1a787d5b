"""Values of stores in plain types: those of Python, and those of JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def python_value(value: Any) -> Any:
    """Return an element of an array as a bool, int or float, or else as text.

    >>> python_value(np.float32(0.5)), python_value(np.int8(3)), python_value(b"a")
    (0.5, 3, 'a')
    """
    if isinstance(value, np.generic) and value.dtype.type.__module__ == "ml_dtypes":
        return str(value) if "complex" in value.dtype.name else float(value)
    if isinstance(value, (np.bool_, np.integer, np.floating)) and value.dtype.kind in "biuf":
        plain = value.item()
        return plain if isinstance(plain, (bool, int, float)) else float(plain)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def jsonable(value: Any) -> Any:
    """Return the value in types that every JSON reader accepts: what is not finite becomes text.

    >>> jsonable({"a": (1.0, float("nan"), -float("inf"))})
    {'a': [1.0, 'NaN', '-Infinity']}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(inner) for inner in value]
    return value
