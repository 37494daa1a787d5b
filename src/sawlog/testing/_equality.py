"""Values of any dtype, and whether two arrays are the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np

WORDS = ("", "a", "ß", "日本", "zeta")


def assert_same(found: Any, expected: Any, what: str = "the array") -> None:
    """Raise AssertionError unless both arrays agree in dtype, shape and every bit.

    Only the unused bytes of an extended ``longdouble`` are left out of it.

    >>> assert_same(np.float32([1, np.nan]), np.float32([1, np.nan]))
    >>> assert_same(np.float32([0.0]), np.float32([-0.0]))
    Traceback (most recent call last):
    AssertionError: the array: item (0,) is np.float32(0.0), expected np.float32(-0.0)
    """
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype, f"{what}: {found.dtype}, expected {expected.dtype}"
    assert found.shape == expected.shape, f"{what}: {found.shape}, expected {expected.shape}"
    if found.size == 0 or found.dtype.itemsize == 0:
        return
    differ = _differences(found, expected)
    if differ.any():
        at = tuple(int(index) for index in np.argwhere(differ)[0])
        raise AssertionError(f"{what}: item {at} is {found[at]!r}, expected {expected[at]!r}")


def _differences(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    if found.dtype.names:
        fields = [_differences(found[name], expected[name]) for name in found.dtype.names]
        return np.asarray(np.any([_flat_rows(each, found.ndim) for each in fields], axis=0))
    if found.dtype in (np.longdouble, np.clongdouble):
        return np.asarray((found != expected) & ~(np.isnan(found) & np.isnan(expected)))
    return np.asarray(np.any(_bytes_of(found) != _bytes_of(expected), axis=-1))


def _flat_rows(differ: np.ndarray, ndim: int) -> np.ndarray:
    """Return differences in the subarray of a field, as one answer for each item."""
    return np.asarray(np.any(differ.reshape(*differ.shape[:ndim], -1), axis=-1))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return the bytes, ``[*shape, itemsize]``."""
    flat = np.frombuffer(array.tobytes(), np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)


def sample(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return reproducible values of a dtype, its odd ones (NaN, infinities, -0.0) among them.

    >>> sample("int8", (4,)).dtype, sample("U2", (2, 3)).shape
    (dtype('int8'), (2, 3))
    """
    dtype = np.dtype(dtype)
    random = np.random.default_rng(seed)
    if dtype.names:
        return _structured(dtype, shape, seed)
    if dtype.kind in "SU":
        pick = random.integers(len(WORDS), size=shape)
        words = [word if dtype.kind == "U" else word.encode() for word in WORDS]
        return np.array(words, dtype)[pick]
    if dtype.kind == "b":
        return random.integers(2, size=shape).astype(dtype)
    if dtype in (np.longdouble, np.clongdouble):
        return (random.standard_normal(shape) / np.longdouble(3)).astype(dtype)
    if _is_narrow(dtype):
        return random.integers(2, size=shape).astype(np.float32).astype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(random.bytes(size), dtype).reshape(shape).copy()


def _structured(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = np.zeros(shape, dtype)
    for number, name in enumerate(dtype.names or ()):
        field = values[name]
        values[name] = sample(field.dtype, field.shape, seed + number)
    return values


def _is_narrow(dtype: np.dtype) -> bool:
    """Return whether this is a type of ml_dtypes that does not use all the bits of its byte."""
    names = ("int1", "int2", "int4", "uint1", "uint2", "uint4", "float4_", "float6_")
    return dtype.itemsize == 1 and dtype.name.startswith(names)
