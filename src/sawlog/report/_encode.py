"""Data for the page: arrays as base64, and JSON that no HTML parser can misread."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from sawlog.example_data import Example
from sawlog.inspect._values import jsonable

MOST_TEXT = 4_000  # characters of an example's text on the page
_MOST_INTEGER = 2**53 - 1  # of JavaScript
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def packed(values: Any) -> Any:
    """Return an array of numbers in few characters of JSON.

    Evenly spaced numbers are ``{"from": a, "by": b, "n": n}``. Others are base64 of little-endian
    floats: of 32 bits if that is exact or ``values`` has many digits anyway, else of 64 bits.

    >>> packed(np.arange(5.0) * 10)
    {'from': 0.0, 'by': 10.0, 'n': 5}
    >>> packed(np.array([1.0, 2.0, 4.0]))
    {'f4': 'AACAPwAAAEAAAIBA'}
    """
    array = np.asarray(values, np.float64)
    if len(array) > 2 and np.isfinite(array).all():
        step = float(array[1] - array[0])
        even = array[0] + step * np.arange(len(array))
        if np.array_equal(even, array):
            return {"from": float(array[0]), "by": step, "n": len(array)}
    with np.errstate(over="ignore"):
        single = array.astype("<f4")
    if np.array_equal(single.astype(np.float64), array, equal_nan=True):
        return {"f4": base64.b64encode(single.tobytes()).decode()}
    return {"f8": base64.b64encode(array.astype("<f8").tobytes()).decode()}


def packed_values(values: Any) -> Any:
    """Return measured values: 32 bits are enough for a screen, unless they would overflow."""
    array = np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        single = array.astype("<f4")
    if np.array_equal(np.isfinite(single), np.isfinite(array)):
        return {"f4": base64.b64encode(single.tobytes()).decode()}
    return {"f8": base64.b64encode(array.astype("<f8").tobytes()).decode()}


def exact(value: Any) -> Any:
    """Return a value of JSON in which integers that JavaScript would round are texts.

    >>> exact({"id": 2**53 + 1, "n": 7})
    {'id': '9007199254740993', 'n': 7}
    """
    if isinstance(value, dict):
        return {name: exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _MOST_INTEGER:
        return str(value)
    return value


def safe_json(value: Any) -> str:
    """Return JSON that can be put into a ``script`` element whatever texts it contains.

    >>> safe_json({"a": "</script><b>"})
    '{"a":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e"}'
    """
    text = json.dumps(exact(jsonable(value)), separators=(",", ":"), allow_nan=False)
    for character, escape in _UNSAFE.items():
        text = text.replace(character, escape)
    return text


def data_uri(data: bytes, media_type: str) -> str:
    """Return bytes as the address of an image."""
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def example_json(example: Example) -> dict[str, Any]:
    """Return an example as the page shows it; long texts are cut, and say so."""
    said: dict[str, Any] = {}
    if example.text is not None:
        said["text"] = example.text[:MOST_TEXT]
        if example.cut or len(example.text) > MOST_TEXT:
            said["cut"] = True
    if example.tokens:
        said["tokens"] = list(example.tokens)
    if example.image is not None:
        said["image"] = data_uri(example.image, example.media_type)
    if example.fields:
        said["fields"] = dict(example.fields)
    return said


def histogram(values: Any, bins: int = 60) -> dict[str, Any]:
    """Return a histogram of the finite values: bounds of the range, counts, and what is left out.

    >>> histogram([0.0, 1.0, 1.0, float("nan")], bins=2)
    {'low': 0.0, 'high': 1.0, 'counts': [1, 2], 'nonfinite': 1}
    """
    array = np.asarray(values, np.float64).reshape(-1)
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    high = high if high > low else low + (abs(low) or 1.0) * 1e-6
    counts = np.histogram(finite, bins, (low, high))[0].tolist()
    return {"low": low, "high": high, "counts": counts, "nonfinite": len(array) - len(finite)}


def overall(ids: Any, values: Any) -> dict[str, Any]:
    """Return one number for each example, with ids that can be downloaded as they are."""
    own = listed(ids)
    kind = "int" if own and isinstance(own[0], int) else "str"
    return {"ids": own, "kind": kind, "values": packed_values(values)}


def listed(ids: Any) -> list[Any]:
    """Return ids as integers or strings of Python."""
    return list(np.asarray(ids).tolist())
