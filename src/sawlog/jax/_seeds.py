"""Which run a program belongs to: PRNG keys and seeds as names, and what is noted about a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax import _compat

_HINT = "Hint: logger.init(jax.random.key(0)), and jax.vmap(logger.init)(keys) for several runs."


def key_data(key: Any) -> Any:
    """The words of a PRNG key, ``uint32[2]`` or ``uint32[4]``.

    A whole number stands for the key that ``jax.random.key`` makes of it.

    Raises:
        ArgumentError: it is no key, or several.
    """
    if isinstance(key, int) and not isinstance(key, bool):
        if not 0 <= key < 2**64:
            raise ArgumentError(f"A seed must be a number from 0 to 2**64 - 1, got {key}. {_HINT}")
        return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)
    if not hasattr(key, "dtype") or not _compat.is_jax_value(key):
        raise ArgumentError(f"init takes a PRNG key or a seed, got {key!r}. {_HINT}")
    kind = _compat.key_kind(key)
    data, shape = (key, ()) if kind is None else (jax.random.key_data(key), key.shape)
    if kind is None and jnp.ndim(key) == 0 and jnp.issubdtype(key.dtype, jnp.integer):
        return jax.random.key_data(jax.random.key(key, impl="threefry2x32"))
    if shape or jnp.ndim(data) != 1 or data.dtype != jnp.uint32 or data.shape[0] not in (2, 4):
        text = f"{key.dtype}[{','.join(map(str, key.shape))}]"
        raise ArgumentError(f"init takes one PRNG key or one seed, got {text}. {_HINT}")
    return data


def run_name(words: Sequence[int]) -> str:
    """A readable name for a key, another one for each key.

    >>> run_name([0, 7]), run_name([1797259609, 2579123966])
    ('seed-7', 'key-6b200159-99ba4efe')
    """
    if len(words) == 2 and words[0] == 0:
        return f"seed-{words[1]}"
    return "key-" + "-".join(f"{word:08x}" for word in words)


def split_config(config: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """The arrays among the settings of a run, and a function that puts their values back in.

    What comes back is what JSON can hold.

    Raises:
        ArgumentError: a setting is nothing that JSON can hold.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(dict(config), is_leaf=lambda x: x is None)
    for path, leaf in leaves:
        _check_setting(leaf, jax.tree_util.keystr(path))
    arrays = {i: leaf for i, (_, leaf) in enumerate(leaves) if hasattr(leaf, "dtype")}

    def joined(values: Sequence[Any]) -> dict[str, Any]:
        known = dict(zip(arrays, map(_plain, values), strict=True))
        full = [known.get(i, leaf) for i, (_, leaf) in enumerate(leaves)]
        return dict(_lists(jax.tree.unflatten(tree, full)))

    return list(arrays.values()), joined


def _check_setting(value: Any, where: str) -> None:
    fits = value is None or isinstance(value, (str, bool, int, float))
    if not fits and not (hasattr(value, "dtype") and _is_numeric(value)):
        raise ArgumentError(
            f"The setting {where} is a {type(value).__name__}, which cannot be noted with a run. "
            "Hint: give numbers, strings, arrays of numbers, and dicts or lists of those; str(x) "
            "for anything else."
        )


def _is_numeric(value: Any) -> bool:
    if _compat.key_kind(value) is not None:
        return False
    return any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))


def _plain(array: Any) -> Any:
    """Numbers as Python has them."""
    array = np.asarray(array)
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(np.float64)
    return array.tolist()


def _lists(value: Any) -> Any:
    """The same as JSON gives it back."""
    if isinstance(value, dict):
        return {str(key): _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
