"""Find the parameters among the arguments of a function, and name each by its path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.errors import ArgumentError
from sawlog.jax import _compat
from sawlog.jax._core import libraries

Path = tuple[str, ...]
Leaf = tuple[Path, Any]


def find_parameters(params: Any, args: tuple, kwargs: Mapping[str, Any]) -> dict[int, str]:
    """Return the names of the parameters among arguments, by the identity of each array.

    Args:
        params: a pytree like the parameters, a function of the arguments that returns them, or
            None for the first argument.
        args, kwargs: the arguments.

    Raises:
        ArgumentError: no argument contains such a pytree, or several do.
    """
    if params is None:
        found = _leaves(args[0] if args else next(iter(kwargs.values()), ()))
    elif _is_function(params):
        found = _leaves(params(*args, **kwargs))
    else:
        found = _search(_leaves(params), _leaves((args, dict(kwargs))))
    if not found:
        raise ArgumentError(
            "watch found no parameters: an array of floating point numbers among the arguments. "
            "Hint: watch(f, params), where f takes params, or "
            "watch(f, lambda state, batch: state.params)."
        )
    return {id(leaf): _name(path) for path, leaf in found}


def check_marked(wanted: Iterable[str], marked: Iterable[str]) -> None:
    """Raise if a parameter is not an array among the arguments."""
    missing = sorted({*wanted} - {*marked})
    if missing:
        raise ArgumentError(
            f"`params` returned arrays that are not among the arguments of the watched function: "
            f"{', '.join(missing)}. Hint: return a part of the arguments unchanged, as in "
            "watch(f, lambda state, batch: state.params)."
        )


def _is_function(params: Any) -> bool:
    """Return whether this is a function, and not a module that can be called."""
    return callable(params) and jax.tree.leaves(params) == [params]


def _leaves(tree: Any) -> list[Leaf]:
    """Return the arrays of floating point numbers in a pytree, with their paths."""
    found = []
    for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        dtype = getattr(leaf, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, jnp.inexact) and _compat.has_tangent(leaf):
            found.append((tuple(jax.tree_util.keystr((key,), simple=True) for key in keys), leaf))
    return found


def _search(wanted: Sequence[Leaf], given: Sequence[Leaf]) -> list[Leaf]:
    """Return the only part of the arguments with the paths, shapes and dtypes of the parameters."""
    count = len(wanted)
    matches = []
    for start in range(len(given) - count + 1) if count else ():
        window = given[start : start + count]
        depth = len(window[0][0]) - len(wanted[0][0])
        prefix = window[0][0][:depth]
        if depth >= 0 and all(
            path[:depth] == prefix and path[depth:] == own and _alike(leaf, like)
            for (path, leaf), (own, like) in zip(window, wanted, strict=True)
        ):
            matches.append(
                (prefix, [(own, leaf) for (own, _), (_, leaf) in zip(wanted, window, strict=True)])
            )
    if not matches:
        raise ArgumentError(
            "No argument of the watched function contains a pytree like `params`: the same paths, "
            "shapes and dtypes. Hint: call it with such parameters, or say where they are: "
            "watch(f, lambda state, batch: state.params)."
        )
    if len(matches) > 1:
        places = ", ".join("/".join(prefix) or "the arguments" for prefix, _ in matches)
        raise ArgumentError(
            f"{len(matches)} parts of the arguments are like `params`: {places}. Hint: say which "
            "of them the parameters are: watch(f, lambda state, batch: state.params)."
        )
    return matches[0][1]


def _alike(leaf: Any, like: Any) -> bool:
    return leaf.shape == like.shape and leaf.dtype == like.dtype


def _name(path: Path) -> str:
    """Return the name of a parameter: its path, without the field that holds a variable's array."""
    if len(path) > 1 and path[-1] in ("value", "raw_value"):
        path = path[:-1]
    return "/".join(path) or "params"


def replace_parameters(
    change: Callable[[Any], Any], args: tuple, kwargs: Mapping[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Apply ``change`` to every leaf of the arguments; objects of ``flax.nnx`` change in place."""
    nnx = libraries.loaded("flax.nnx")

    def replace(part: Any) -> Any:
        if nnx is not None and libraries.is_state(nnx, part):
            nnx.update(part, jax.tree.map(change, nnx.state(part)))
            return part
        return change(part)

    is_leaf = None if nnx is None else lambda x: libraries.is_state(nnx, x)
    return jax.tree.map(replace, (args, dict(kwargs)), is_leaf=is_leaf)
