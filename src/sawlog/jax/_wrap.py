"""Calling a transformed function as ``jax.jit`` would: traced once for each signature, then cached.

``spool(f)(x)`` written twice must not trace twice, so the compiled side of a transformation is kept
in a table by function and options. The table holds functions weakly: it never keeps one alive.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax

from sawlog.errors import ArgumentError
from sawlog.jax import _compat
from sawlog.jax._primitive import listening

Evaluate = Callable[[Any, list[Any], Sequence[Any]], tuple[list[Any], Any]]


@jax.tree_util.register_static
class _Fixed:
    """An output that is no array; it goes through ``jit`` as part of the structure."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self.value is other.value

    def __hash__(self) -> int:
        return hash(id(self.value))


class Program:
    """The compiled side of a transformation of one function.

    ``evaluate(closed_jaxpr, args, hidden)`` gives the flat outputs and whatever comes with them;
    ``hidden`` are values of the transformation's own, given at each call.
    """

    def __init__(self, fun: Callable[..., Any], evaluate: Evaluate, hidden: int = 0) -> None:
        self._fun = _weakly(fun)
        self._evaluate = evaluate
        self._hidden = hidden
        arguments = _compat.jit_arguments(fun)
        for name in ("static_argnums", "donate_argnums"):
            if name in arguments:
                arguments[name] = tuple(i + hidden if i >= 0 else i for i in arguments[name])
        self._jitted = jax.jit(_named_like(self._traced, fun, hidden), inline=True, **arguments)
        self._jitted_parts = jax.jit(self._from_parts, inline=True, static_argnums=0)

    def __call__(self, args: tuple, kwargs: dict[str, Any], *hidden: Any) -> tuple[Any, Any]:
        """The output of the function, and what the transformation adds."""
        try:
            (kind, out), more = self._jitted(*hidden, *args, **kwargs)
        except TypeError:
            leaves, tree = jax.tree.flatten((args, kwargs))
            if all(map(_compat.is_jax_value, leaves)) or _compat.jit_arguments(self._fun()):
                raise
            fixed = True
        else:
            fixed = False
        if fixed:  # out of the except block, so that an error from here stands for itself
            (kind, out), more = self._jitted_parts(*_partition(leaves, tree), hidden)
        return (out if kind is None else jax.tree.map(_unfix, out, is_leaf=_is_fixed)), more

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """Trace the function with its logs, and evaluate the result in the trace around."""
        hidden, args = args[: self._hidden], args[self._hidden :]
        fun, (leaves, tree) = self._fun(), jax.tree.flatten((args, kwargs))
        dynamic = [i for i, leaf in enumerate(leaves) if _compat.is_tracer(leaf)]
        structure: list[Any] = []

        def flat(*values: Any) -> list[Any]:
            full = list(leaves)
            for i, value in zip(dynamic, values, strict=True):
                full[i] = value
            args, kwargs = jax.tree.unflatten(tree, full)
            outs, out_tree = jax.tree.flatten(fun(*args, **kwargs))
            structure.append((out_tree, outs))
            return [out for out in outs if _compat.is_jax_value(out)]

        values = [leaves[i] for i in dynamic]
        avals = [_compat.typeof(value) for value in values]
        with listening():
            closed = _compat.trace_flat(flat, avals, _name_of(fun))
        outs, more = self._evaluate(closed, values, hidden)
        out_tree, originals = structure[0]
        return _restore(out_tree, originals, outs), more

    def _from_parts(self, fixed: _Parts, values: list[Any], hidden: tuple) -> Any:
        args, kwargs = fixed.join(values)
        return self._traced(*hidden, *args, **kwargs)


class _Parts:
    """The part of some arguments that is not arrays: hashable, and static for ``jit``."""

    def __init__(self, tree: Any, places: dict[int, Any]) -> None:
        self._tree, self._places = tree, places
        self._key = (tree, tuple(places.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def join(self, values: list[Any]) -> Any:
        rest = iter(values)
        count = self._tree.num_leaves
        leaves = [self._places[i] if i in self._places else next(rest) for i in range(count)]
        return jax.tree.unflatten(self._tree, leaves)


def _partition(leaves: list[Any], tree: Any) -> tuple[_Parts, list[Any]]:
    places: dict[int, Any] = {}
    for i, leaf in enumerate(leaves):
        if _compat.is_jax_value(leaf):
            continue
        try:
            hash(leaf)
        except TypeError:
            path = _path_of(tree, i)
            raise ArgumentError(
                f"The argument at {path} is of type {type(leaf).__name__}, which is neither "
                "something JAX can trace nor hashable. Hint: close over it, or pass arrays."
            ) from None
        places[i] = leaf
    return _Parts(tree, places), [leaf for i, leaf in enumerate(leaves) if i not in places]


def _path_of(tree: Any, position: int) -> str:
    """Where an argument stands in the call: ``args[1]['u']``."""
    marked = jax.tree.unflatten(tree, range(tree.num_leaves))
    (which, *path), _ = jax.tree_util.tree_flatten_with_path(marked)[0][position]
    return ("args", "kwargs")[which.idx] + jax.tree_util.keystr(tuple(path))


def _restore(tree: Any, originals: list[Any], outs: list[Any]) -> tuple[Any, Any]:
    """The outputs as the function gave them; a mark, when some are no arrays and were wrapped."""
    rest = iter(outs)
    leaves = [next(rest) if _compat.is_jax_value(x) else _Fixed(x) for x in originals]
    mark = None if all(map(_compat.is_jax_value, originals)) else ()
    return mark, jax.tree.unflatten(tree, leaves)


def _is_fixed(leaf: Any) -> bool:
    return isinstance(leaf, _Fixed)


def _unfix(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, _Fixed) else leaf


def _weakly(fun: Callable[..., Any]) -> Callable[[], Any]:
    try:
        return weakref.WeakMethod(fun) if inspect.ismethod(fun) else weakref.ref(fun)
    except TypeError:
        return lambda: fun


def _name_of(fun: Any) -> str:
    return getattr(fun, "__name__", None) or type(fun).__name__


def _named_like(body: Callable[..., Any], fun: Any, hidden: int) -> Callable[..., Any]:
    """A function that looks like ``fun`` to JAX, without holding it."""

    def named(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    named.__name__ = named.__qualname__ = _name_of(fun)
    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(fun)
        more = [
            inspect.Parameter(f"_sawlog{i}", inspect.Parameter.POSITIONAL_ONLY)
            for i in range(hidden)
        ]
        signature = signature.replace(parameters=[*more, *signature.parameters.values()])
        named.__signature__ = signature  # type: ignore[attr-defined]
    return named


_tables: dict[int, tuple[Any, dict[Any, Program]]] = {}


def program_for(fun: Callable[..., Any], options: Any, make: Callable[[], Program]) -> Program:
    """The program of ``fun`` for these options, made at the first request.

    Functions are told apart by identity. A bound method is a new object each time it is named, and
    what it is bound to may have changed since, so like ``jax.jit`` this remembers none.
    """
    if inspect.ismethod(fun):
        return make()
    key = id(fun)
    if key not in _tables:
        try:
            _tables[key] = (weakref.ref(fun, lambda _: _tables.pop(key, None)), {})
        except TypeError:  # cannot be held weakly
            return make()
    programs = _tables[key][1]
    if options not in programs:
        programs[options] = make()
    return programs[options]


def check_callable(fun: Any, name: str) -> None:
    """Refuse what is not a function.

    Raises:
        ArgumentError: naming what was given.
    """
    if not callable(fun):
        usage = f"{name}(f)(x), not {name}(f(x))"
        if name == "callback":
            usage = "tap(f, callback)(x), where callback(logs) takes a logdict"
        raise ArgumentError(f"{name} must be a function, got {type(fun).__name__}. Hint: {usage}.")
