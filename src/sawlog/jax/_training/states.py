"""The state of a training run as two lists of arrays: those with derivatives, and the others.

Leaves that are not arrays, such as the activation functions of an equinox module, are kept aside.
A Python number that steps change, as the counter of a ``TrainState``, is an array.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.errors import ArgumentError

Arrays = tuple[list[Any], list[Any]]  # with a derivative; without one


class ChangedNumber(ArgumentError):
    """A Python number of the state changed. ``place`` is that of the leaf."""

    def __init__(self, name: str, place: int) -> None:
        super().__init__(
            f"state{name} is a Python number that is not the same in all steps and runs. Hint: "
            "let `init` return an array, such as jnp.zeros((), int)."
        )
        self.place = place


@dataclasses.dataclass(frozen=True)
class StateLayout:
    """Where the leaves of a state are.

    Args:
        tree: The structure of the state.
        kinds: For each leaf, 0 if it has a derivative, 1 for any other array, None if it is static.
        static: The leaves that are not arrays, in order.
        names: The path of each leaf, for messages.
    """

    tree: Any
    kinds: tuple[int | None, ...]
    static: tuple[Any, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, state: Any, changing: Collection[int] = ()) -> StateLayout:
        """Read the layout of a state; ``changing`` has the places of numbers that steps change."""
        paths, tree = jax.tree_util.tree_flatten_with_path(state)
        kinds = tuple(
            _number_kind(leaf) if place in changing else _kind(leaf)
            for place, (_, leaf) in enumerate(paths)
        )
        static = tuple(leaf for (_, leaf), kind in zip(paths, kinds, strict=True) if kind is None)
        names = tuple(jax.tree_util.keystr(path) for path, _ in paths)
        return cls(tree, kinds, static, names)

    def split(self, state: Any) -> Arrays:
        """Return the arrays of a state, those with a derivative first."""
        leaves, tree = jax.tree.flatten(state)
        if tree != self.tree:
            raise ArgumentError(
                f"A step changed the structure of the state from {self.tree} to {tree}. Hint: "
                "return a state of the same structure from every step."
            )
        pairs = list(zip(leaves, self.kinds, strict=True))
        self._check_static(leaves)
        return (
            [jnp.asarray(leaf) for leaf, kind in pairs if kind == 0],
            [_as_array(leaf) for leaf, kind in pairs if kind == 1],
        )

    def _check_static(self, leaves: list[Any]) -> None:
        static = iter(self.static)
        for place, (leaf, kind) in enumerate(zip(leaves, self.kinds, strict=True)):
            if kind is not None:
                continue
            old = next(static)
            if leaf is old or not _has_changed(old, leaf):
                continue
            if isinstance(old, _NUMBERS):
                raise ChangedNumber(self.names[place], place)
            raise ArgumentError(
                f"A step changed state{self.names[place]} from {old!r:.80} to {leaf!r:.80}. Only "
                "arrays and numbers may change. Hint: let `init` return an array."
            )

    @property
    def has_numbers(self) -> bool:
        """Whether there are Python numbers, which steps might change."""
        return any(isinstance(leaf, _NUMBERS) for leaf in self.static)

    def join(self, arrays: Arrays) -> Any:
        """Return the state with these arrays."""
        sources = {0: iter(arrays[0]), 1: iter(arrays[1]), None: iter(self.static)}
        return jax.tree.unflatten(self.tree, [next(sources[kind]) for kind in self.kinds])

    def check_types(self, before: Arrays, after: Arrays) -> None:
        """Refuse a step that changed the shape or the dtype of an array of the state."""
        for names, *pair in zip(self.arrays_names(), before, after, strict=True):
            for name, old, new in zip(names, *pair, strict=True):
                if (old.shape, old.dtype) != (new.shape, new.dtype):
                    raise ArgumentError(
                        f"A step changed state{name} from {old.dtype}{list(old.shape)} to "
                        f"{new.dtype}{list(new.shape)}. Hint: let `init` return arrays of the "
                        "shape and dtype that they have after a step."
                    )

    def arrays_names(self) -> tuple[list[str], list[str]]:
        """Return the paths of the arrays, as :meth:`split` returns them."""
        pairs = list(zip(self.names, self.kinds, strict=True))
        return [n for n, kind in pairs if kind == 0], [n for n, kind in pairs if kind == 1]


def check_precision(state: Any, what: str = "state") -> None:
    """Refuse arrays whose precision cannot hold derivatives of a long run."""
    leaves = jax.tree_util.tree_flatten_with_path(state)[0]
    if what != "optimizer state" and 0 not in {_kind(leaf) for _, leaf in leaves}:
        raise ArgumentError(
            f"The {what} that `init` returns must contain arrays of real numbers, which training "
            f"changes; got {[str(getattr(leaf, 'dtype', type(leaf))) for _, leaf in leaves][:5]}. "
            "Hint: keep parameters in float32."
        )
    for path, leaf in leaves:
        if _kind(leaf) != 0:
            continue
        name = f"{what}{jax.tree_util.keystr(path)}"
        if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
            raise ArgumentError(
                f"{name} is complex. Derivatives of training need real parameters. Hint: store "
                "the real and the imaginary part."
            )
        if leaf.dtype.itemsize < 4:
            raise ArgumentError(
                f"{name} has the dtype {leaf.dtype}. Each step of a run in half precision rounds "
                "away most of what one example changes, and its derivative is noise. Hint: keep "
                "parameters and optimizer state in float32, and cast inside of the loss to "
                "compute in half precision; optax: mu_dtype=jnp.float32."
            )


_NUMBERS = (bool, int, float)


def _number_kind(leaf: Any) -> int:
    return 0 if isinstance(leaf, float) or _kind(leaf) == 0 else 1


def _has_changed(old: Any, new: Any) -> bool:
    """Return whether a leaf that is not an array became an array, another number or text."""
    if isinstance(new, (jax.Array, np.ndarray, np.generic)):
        return True
    plain = (*_NUMBERS, complex, str, bytes)
    return isinstance(new, plain) and new == new and (type(new) is not type(old) or new != old)


def _kind(leaf: Any) -> int | None:
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
        return None if not isinstance(leaf, jax.ShapeDtypeStruct) else _dtype_kind(leaf)
    return _dtype_kind(leaf)


def _dtype_kind(leaf: Any) -> int:
    return 0 if jnp.issubdtype(leaf.dtype, jnp.inexact) else 1


def _as_array(leaf: Any) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)
