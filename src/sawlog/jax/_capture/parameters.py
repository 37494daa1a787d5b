"""Parameters and batches as flat lists: names of leaves, and where a batch has its examples."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError

Names = Sequence[str] | str | Callable[[str], bool] | None


def is_array(leaf: Any) -> bool:
    """Return whether a leaf is an array, rather than a function or a Python number."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic))


def leaf_names(tree: Any) -> list[str]:
    """Return the name of each leaf: the keys on the way to it, joined by ``/``.

    >>> leaf_names({"params": {"Dense_0": {"kernel": 1, "bias": 2}}})
    ['params/Dense_0/bias', 'params/Dense_0/kernel']
    """
    names = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_box)[0]:
        name = _joined(path)
        inside = jax.tree_util.tree_flatten_with_path(leaf)[0] if _is_box(leaf) else ()
        if len(inside) > 1:
            names += ["/".join(filter(None, (name, _joined(inner)))) for inner, _ in inside]
        elif inside or not _is_box(leaf):
            names.append(name)
    return names


def _joined(path: Any) -> str:
    return str(jax.tree_util.keystr(path, simple=True, separator="/"))


def _is_box(value: Any) -> bool:
    """Return whether this is a variable of flax, which holds an array as its ``value``."""
    return any(
        kind.__module__.startswith("flax.") and kind.__name__ in ("Variable", "AxisMetadata")
        for kind in type(value).__mro__
    )


@dataclasses.dataclass(frozen=True)
class Static:
    """The part of an argument that is not an array: its structure and other leaves."""

    tree: Any
    rest: tuple[Any, ...]

    @classmethod
    def split(cls, value: Any, numbers: bool) -> tuple[list[Any], Static]:
        """Split a pytree into its arrays and the rest.

        Args:
            value: The pytree.
            numbers: Whether Python numbers are arrays.
        """
        leaves, tree = jax.tree.flatten(value)
        dynamic = [
            is_array(x) or (numbers and isinstance(x, (int, float, complex))) for x in leaves
        ]
        arrays = [x for x, flag in zip(leaves, dynamic, strict=True) if flag]
        rest = tuple(_ARRAY if flag else x for x, flag in zip(leaves, dynamic, strict=True))
        return arrays, cls(tree, rest)

    def merge(self, arrays: Sequence[Any]) -> Any:
        """Return the pytree with these arrays."""
        given = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(given) if x is _ARRAY else x for x in self.rest])

    def spread(self, values: Sequence[Any], other: Any) -> list[Any]:
        """Return values of arrays as values of all leaves, with ``other`` for the rest."""
        given = iter(values)
        return [next(given) if x is _ARRAY else other for x in self.rest]

    def of_arrays(self, values: Sequence[Any]) -> list[Any]:
        """Return which of the values of all leaves are those of arrays."""
        return [v for v, x in zip(values, self.rest, strict=True) if x is _ARRAY]


class _Array:
    """The placeholder of an array that was taken out."""

    def __repr__(self) -> str:
        return "array"


_ARRAY = _Array()


def selected(names: Names, name: str) -> bool:
    """Return whether a parameter is to be watched."""
    if names is None:
        return True
    if callable(names):
        return bool(names(name))
    patterns = [names] if isinstance(names, str) else list(names)
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def watched(names: Names, params: Sequence[tuple[str, Any]]) -> list[str]:
    """Return the names of the parameters to watch.

    Raises:
        ArgumentError: None is left, or two have the same name.
    """
    floats = [name for name, x in params if jnp.issubdtype(jnp.result_type(x), jnp.floating)]
    chosen = [name for name in floats if selected(names, name)]
    if len({*floats}) < len(floats):
        twice = sorted({name for name in floats if floats.count(name) > 1})
        raise ArgumentError(f"Several parameters have the name {', '.join(twice)}.")
    if not chosen:
        if not floats:
            kinds = sorted({str(jnp.result_type(x)) for _, x in params})
            raise ArgumentError(
                "`params` has no arrays of real floats, whose gradients could be captured; it has "
                f"{', '.join(kinds) or 'no arrays'}."
            )
        raise ArgumentError(f"`names` selects no parameter. The names are: {', '.join(floats)}.")
    return chosen


def batch_axes_of(batch: Any, axes: Any) -> list[int | None]:
    """Return where each leaf of a batch has its examples; None for a leaf that all share.

    Raises:
        ArgumentError: ``axes`` does not fit the batch.
    """
    leaves = jax.tree.leaves(batch)
    if axes is None or isinstance(axes, int):
        found = [axes] * len(leaves)
        found = [None if np.ndim(x) == 0 else axis for x, axis in zip(leaves, found, strict=True)]
    else:
        try:
            spread = jax.tree.map(
                lambda axis, part: jax.tree.map(lambda _: _Box(axis), part),
                axes,
                batch,
                is_leaf=lambda x: x is None,
            )
            found = [box.axis for box in jax.tree.leaves(spread)]
        except ValueError as error:
            raise ArgumentError(
                f"`batch_axes` must be an integer, None, or a pytree that is a prefix of the "
                f"batch, as for jax.vmap: {error}"
            ) from error
    pairs = zip(leaf_names(batch), leaves, found, strict=True)
    return [None if axis is None else _axis(name, leaf, axis) for name, leaf, axis in pairs]


def _axis(name: str, leaf: Any, axis: int) -> int:
    rank = np.ndim(leaf)
    if not -rank <= axis < rank:
        raise ArgumentError(
            f"`batch_axes` says that {name or 'the batch'!r} has its examples along axis {axis}, "
            f"and it has {rank} axes. Hint: None marks a leaf that all examples share."
        )
    return int(axis) % rank


@dataclasses.dataclass(frozen=True)
class _Box:
    axis: int | None


def examples_of(batch: Any, axes: Sequence[int | None]) -> int:
    """Return the number of examples.

    Raises:
        ArgumentError: Leaves disagree, or none has examples.
    """
    names, leaves = leaf_names(batch), jax.tree.leaves(batch)
    sizes = {
        name or "batch": int(np.shape(leaf)[axis])
        for name, leaf, axis in zip(names, leaves, axes, strict=True)
        if axis is not None
    }
    if not sizes:
        raise ArgumentError(
            "No leaf of the batch has examples. Hint: pass a batch of arrays, and "
            "batch_axes= if the examples are not their first axis."
        )
    if len({*sizes.values()}) > 1:
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ArgumentError(
            f"The leaves of the batch have different numbers of examples ({listed}). Hint: say "
            "where each leaf has its examples, and None for one that all examples share, such as "
            'a random key: batch_axes={"x": 0, "key": None}.'
        )
    return next(iter(sizes.values()))
