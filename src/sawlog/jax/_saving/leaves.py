"""Leaves of saved logs: arrays as numpy has them, PRNG keys as their data and a name."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from sawlog.errors import LogValueError
from sawlog.jax import _compat


def to_host(leaf: Any, what: str) -> tuple[np.ndarray, str | None]:
    """A leaf as numpy has it; of PRNG keys their data, and which kind they are.

    Raises:
        LogValueError: it is no array or number, or not all of it is on this machine.
    """
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        raise LogValueError(
            f"Parts of {what} are on devices of other processes. Hint: collect it first, with "
            "jax.experimental.multihost_utils.process_allgather(logs)."
        )
    if isinstance(leaf, jax.Array) and _compat.key_kind(leaf) is not None:
        return np.asarray(jax.random.key_data(leaf)), impl_of(_compat.key_kind(leaf), what)
    array = np.asarray(leaf)
    if array.dtype.hasobject:
        raise LogValueError(
            f"{what[0].upper()}{what[1:]} is of type {type(leaf).__name__}, which is no array and "
            "no number. Hint: log arrays, numbers, PRNG keys or pytrees of those."
        )
    return array, None


def from_host(array: np.ndarray, impl: str | None) -> Any:
    """The inverse of :func:`to_host`; no dtype changes, whether or not JAX has 64 bits enabled."""
    data: Any = array
    return array if impl is None else jax.random.wrap_key_data(data, impl=impl)


def dtype_to_json(dtype: Any, what: str) -> Any:
    """A dtype as JSON can hold it.

    Raises:
        LogValueError: PRNG keys of a kind that JAX does not know by name.
    """
    kind = _compat.key_kind(dtype)
    if kind is not None:
        return {"impl": impl_of(kind, what)}
    plain = np.dtype(dtype)
    return plain.name if plain.type.__module__ == "ml_dtypes" else plain.str


def dtype_from_json(text: Any) -> Any:
    """The inverse of :func:`dtype_to_json`."""
    return np.dtype(text) if isinstance(text, str) else _key_dtype(text["impl"])


def impl_of(kind: Any, what: str) -> str:
    """The name by which JAX finds a kind of PRNG keys again.

    Raises:
        LogValueError: it has none.
    """
    name = str(kind.name)
    try:
        known = _compat.key_kind(_key_dtype(name)) == kind
    except ValueError:
        known = False
    if not known:
        raise LogValueError(
            f"{what[0].upper()}{what[1:]} holds PRNG keys of the kind {name!r}, which JAX does not "
            "know by that name. Hint: log jax.random.key_data(key)."
        )
    return name


@functools.cache
def _key_dtype(impl: str) -> Any:
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype
