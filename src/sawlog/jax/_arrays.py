"""What PRNG keys need to be treated like any other array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.jax import _compat


def is_plain(array: Any) -> bool:
    """Whether an array has an ordinary dtype, one that numpy can hold."""
    return not jnp.issubdtype(jnp.result_type(array), jax.dtypes.extended)


def zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array of zeros, or of PRNG keys whose bits are zero."""
    kind = _compat.key_kind(dtype)
    if kind is None:
        return jnp.zeros(shape, dtype)
    data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, dtype))
    return jax.random.wrap_key_data(jnp.zeros(data.shape, data.dtype), impl=kind)


def to_numpy(array: Any) -> Any:
    """A host array, unless the dtype is one that numpy cannot hold."""
    return np.asarray(array) if is_plain(array) else array
