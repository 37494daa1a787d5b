"""Names of runs, from PRNG keys and seeds, and the settings saved with a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax import _compat

_RUN_HINT = "Hint: logger.run(train)(jax.random.split(key, 8)), or seeds as jnp.arange(8)."
_HINT = "Hint: logger.init(jax.random.key(0)), and jax.vmap(logger.init)(keys) for several runs."


def key_data(key: Any) -> Any:
    """Return the words of a PRNG key, ``uint32[2]`` or ``uint32[4]``.

    An integer represents the key that ``jax.random.key`` returns for it.

    Raises:
        ArgumentError: the argument is not one key or seed.
    """
    if isinstance(key, int) and not isinstance(key, bool):
        if not 0 <= key < 2**64:
            raise ArgumentError(f"A seed must be a number from 0 to 2**64 - 1; got {key}. {_HINT}")
        return np.array([key >> 32, key & 0xFFFFFFFF], np.uint32)
    if not hasattr(key, "dtype") or not _compat.is_jax_value(key):
        raise ArgumentError(f"init takes a PRNG key or a seed; got {key!r}. {_HINT}")
    kind = _compat.key_kind(key)
    data, shape = (key, ()) if kind is None else (jax.random.key_data(key), key.shape)
    if kind is None and jnp.ndim(key) == 0 and jnp.issubdtype(key.dtype, jnp.integer):
        return jax.random.key_data(jax.random.key(key, impl="threefry2x32"))
    if shape or jnp.ndim(data) != 1 or data.dtype != jnp.uint32 or data.shape[0] not in (2, 4):
        text = f"{key.dtype}[{','.join(map(str, key.shape))}]"
        raise ArgumentError(f"init takes one PRNG key or one seed; got {text}. {_HINT}")
    return data


def run_name(words: Sequence[int]) -> str:
    """Return a readable name for a key; different keys have different names.

    >>> run_name([0, 7]), run_name([1797259609, 2579123966])
    ('seed-7', 'key-6b200159-99ba4efe')
    """
    if len(words) == 2 and words[0] == 0:
        return f"seed-{words[1]}"
    return "key-" + "-".join(f"{word:08x}" for word in words)


def key_lanes(keys: Any) -> tuple[Any, tuple[int, ...], np.ndarray]:
    """Return keys or seeds as an array, the shape of its lanes, and the words of each key.

    Raises:
        ArgumentError: the argument contains neither keys nor seeds.
    """
    if isinstance(keys, int):
        return keys, (), np.asarray(key_data(keys))
    if not hasattr(keys, "dtype"):
        try:
            keys = jnp.asarray(list(keys))
        except TypeError as error:
            text = f"run takes PRNG keys or seeds; got {keys!r:.120}. {_RUN_HINT}"
            raise ArgumentError(text) from error
    if _compat.key_kind(keys) is not None:
        return keys, keys.shape, np.asarray(jax.random.key_data(keys))
    if keys.dtype == jnp.uint32 and jnp.ndim(keys) and keys.shape[-1] in (2, 4):
        return keys, keys.shape[:-1], np.asarray(keys)
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        text = f"{keys.dtype}[{','.join(map(str, keys.shape))}]"
        raise ArgumentError(f"run takes PRNG keys or seeds; got {text}. {_RUN_HINT}")
    keys = jnp.asarray(keys)
    return keys, keys.shape, _words_of_seeds(np.asarray(keys))


def _words_of_seeds(seeds: np.ndarray) -> np.ndarray:
    """Return the words of ``jax.random.key(seed)`` for each seed."""
    wide = seeds.astype(np.uint64 if seeds.dtype.itemsize > 4 else np.uint32).astype(np.uint64)
    return np.stack([wide >> np.uint64(32), wide & np.uint64(0xFFFFFFFF)], -1).astype(np.uint32)


_IS_RUN = re.compile(r"(?:.*-)?(?:seed-[0-9]+|key-[0-9a-f]{8}(?:-[0-9a-f]{8})+)", re.DOTALL)
_LONGEST = 160  # bytes: file names have at most 255, and the key and a suffix follow


def full_name(words: Sequence[int], name: str | None = None, group: str | None = None) -> str:
    """Return the full name of the run of a key: ``group/name-seed-7``.

    >>> full_name([0, 7]), full_name([0, 7], "ppo", "sweep")
    ('seed-7', 'sweep/ppo-seed-7')
    """
    own = run_name(words) if name is None else f"{name}-{run_name(words)}"
    return own if group is None else f"{group}/{own}"


def check_names(name: Any, group: Any) -> None:
    """Check that names are valid for a folder, a file and a tracker.

    Raises:
        ArgumentError: naming the argument and the reason.
    """
    for what, given in (("name", name), ("group", group)):
        if given is not None and (why := _why_not(given, what)):
            raise ArgumentError(
                f"`{what}` must be a string that is known before the program runs, and valid in a "
                f"file name; {given!r:.120} {why}. "
                'Hint: logger.init(key, name="ppo", group="sweep-3"); traced values go into the '
                "config: logger.init(key, lr=lr)."
            )


def _why_not(text: Any, what: str) -> str | None:
    if not isinstance(text, str):
        return f"is of the type {type(text).__name__}"
    if not text or text != text.strip() or text[0] == ".":
        return "is empty, or begins or ends with a space, or begins with a dot"
    if any(sign in '/\\:*?"<>|' or not sign.isprintable() for sign in text):
        return "contains a character that is not valid in file names everywhere"
    if len(text.encode("utf-8", "surrogatepass")) > _LONGEST:
        return f"is longer than {_LONGEST} bytes"
    if what == "group" and _IS_RUN.fullmatch(text):
        return "looks like the name of a run"
    return None


def split_config(config: Mapping[str, Any]) -> tuple[list[Any], Any]:
    """Return the arrays among the settings of a run, and a function that inserts their values.

    The function returns the settings as JSON values.

    Raises:
        ArgumentError: a setting cannot be represented in JSON.
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
            f"The setting {where} is a {type(value).__name__}, which cannot be saved with a run. "
            "Hint: give numbers, strings, arrays of numbers, and dicts or lists of those; str(x) "
            "for anything else."
        )


def _is_numeric(value: Any) -> bool:
    if _compat.key_kind(value) is not None:
        return False
    return any(jnp.issubdtype(value.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))


def _plain(array: Any) -> Any:
    """Convert an array to Python numbers."""
    array = np.asarray(array)
    if jnp.issubdtype(array.dtype, jnp.floating):
        array = array.astype(np.float64)
    return array.tolist()


def _lists(value: Any) -> Any:
    """Convert tuples to lists and keys to strings, as JSON does."""
    if isinstance(value, dict):
        return {str(key): _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
