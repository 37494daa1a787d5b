"""Arguments and outputs that are not arrays: static for ``jax.jit``, part of the pytree structure.

``static_argnums`` and ``static_argnames`` are those of ``jax.jit``. Every other leaf that JAX
cannot trace (strings, functions, modules) is static too. Static arguments are compared by type and
value: ``True``, ``1`` and ``1.0`` are equal in Python, and need a program each.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import jax

from sawlog._validate import refuse
from sawlog.errors import ArgumentError
from sawlog.jax import _compat

# -- declared by number or name --------------------------------------------------------------------


def jit_options(static_argnums: Any, static_argnames: Any) -> dict[str, tuple]:
    """Return the given options as tuples, for ``jax.jit``; None is left out.

    Raises:
        ArgumentError: ``static_argnums`` are not integers, or ``static_argnames`` not strings.
    """
    options: dict[str, tuple] = {}
    for name, value, kind in (
        ("static_argnums", static_argnums, int),
        ("static_argnames", static_argnames, str),
    ):
        if value is None:
            continue
        several = (value,) if isinstance(value, kind) else tuple(value)
        if not all(isinstance(each, kind) for each in several):
            refuse(name, f"{'integers' if kind is int else 'strings'}, as for jax.jit", value)
        options[name] = several
    return options


def shifted(options: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the options of ``jax.jit`` for a function with ``count`` more arguments in front."""
    moved = dict(options)
    for name in ("static_argnums", "donate_argnums"):
        if name in moved:
            moved[name] = tuple(i + count if i >= 0 else i for i in moved[name])
    return moved


def declared_static(
    fun: Any, options: dict[str, Any], args: tuple, kwargs: dict[str, Any]
) -> list[int]:
    """Return the positions, among all leaves, of those that ``options`` declare as static."""
    count = len(args)
    given = options.get("static_argnums", ())
    numbers = {i % count for i in given if -count <= i < count}
    names = set(options.get("static_argnames", ()))
    with contextlib.suppress(TypeError, ValueError):
        numbers |= {i for i, n in enumerate(inspect.signature(fun).parameters) if n in names}
    marked = (
        tuple(jax.tree.map(lambda _, i=i: i in numbers, arg) for i, arg in enumerate(args)),
        {name: jax.tree.map(lambda _, n=name: n in names, x) for name, x in kwargs.items()},
    )
    return [i for i, static in enumerate(jax.tree.leaves(marked)) if static]


# -- leaves that are not arrays --------------------------------------------------------------------


@jax.tree_util.register_static
class NonArrayLeaf:
    """A leaf that is not an array, wrapped so that ``jit`` returns it in the structure.

    Two are equal if they hold the same object.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonArrayLeaf) and self.value is other.value

    def __hash__(self) -> int:
        return hash(id(self.value))


@jax.tree_util.register_static
class StaticLeaf(NonArrayLeaf):
    """A static argument: equal to another one of the same type and value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticLeaf) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[type, Any]:
        return type(self.value), _exact(self.value)


def is_wrapped(leaf: Any) -> bool:
    """Return whether a leaf is wrapped; use it as ``is_leaf``."""
    return isinstance(leaf, NonArrayLeaf)


def unwrap(leaf: Any) -> Any:
    """Return the value of a wrapped leaf, and any other leaf unchanged."""
    return leaf.value if isinstance(leaf, NonArrayLeaf) else leaf


def restore_outputs(tree: Any, wrapped: list[Any], outs: list[Any]) -> tuple[Any, Any]:
    """Return the outputs in the structure that the function returned, with a mark in front.

    The mark is None if all outputs are arrays; then :func:`unwrap_outputs` has nothing to do.
    """
    rest = iter(outs)
    leaves = [next(rest) if x is None else x for x in wrapped]
    mark = None if all(x is None for x in wrapped) else ()
    return mark, jax.tree.unflatten(tree, leaves)


def unwrap_outputs(result: Any) -> tuple[Any, Any]:
    """Return the outputs with all leaves unwrapped, and what the transformation adds."""
    (mark, out), more = result
    return (out if mark is None else jax.tree.map(unwrap, out, is_leaf=is_wrapped)), more


def _exact(value: Any) -> Any:
    """Return a key that differs for numbers that are equal but not the same: 0.0 and -0.0."""
    return repr(value) if isinstance(value, (float, complex)) else value


# -- arguments in two parts ------------------------------------------------------------------------


class StaticPart:
    """The leaves of some arguments that are not arrays: hashable, and static for ``jit``."""

    def __init__(self, tree: Any, leaves: dict[int, Any]) -> None:
        self._tree, self._leaves = tree, leaves
        self._key = (tree, tuple((i, type(x), _exact(x)) for i, x in leaves.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticPart) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def join(self, values: list[Any]) -> Any:
        """Return the arguments, with ``values`` as the other leaves."""
        rest = iter(values)
        count = self._tree.num_leaves
        leaves = [self._leaves[i] if i in self._leaves else next(rest) for i in range(count)]
        return jax.tree.unflatten(self._tree, leaves)


def partition(
    leaves: list[Any], tree: Any, static: Sequence[int] = ()
) -> tuple[StaticPart, list[Any]]:
    """Split leaves into the static ones and the arrays.

    Static are those at the positions ``static``, and all that JAX cannot trace.

    Raises:
        ArgumentError: a static leaf is not hashable.
    """
    found: dict[int, Any] = {}
    for i, leaf in enumerate(leaves):
        if _compat.is_jax_value(leaf) and i not in static:
            continue
        try:
            hash(leaf)
        except TypeError:
            raise ArgumentError(
                f"The argument at {_path_of(tree, i)} is of type {type(leaf).__name__}, which is "
                "neither something JAX can trace nor hashable. Hint: close over it, or pass arrays."
            ) from None
        found[i] = leaf
    return StaticPart(tree, found), [leaf for i, leaf in enumerate(leaves) if i not in found]


def _path_of(tree: Any, position: int) -> str:
    """Return the position of a leaf in the call: ``args[1]['u']``."""
    marked = jax.tree.unflatten(tree, range(tree.num_leaves))
    (which, *path), _ = jax.tree_util.tree_flatten_with_path(marked)[0][position]
    return ("args", "kwargs")[which.idx] + jax.tree_util.keystr(tuple(path))
