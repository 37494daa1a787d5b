"""Reductions in streaming form: ``init``, ``update`` with one entry at a time, ``finish``.

They accumulate inside the program, in the carry of its loops, so that memory does not grow with the
number of steps. ``logs.reduce`` uses the same functions. Names, accepted values and the reduction
of steps are those of ``sawlog._reductions``, which the host shares.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog._reductions import REDUCTION_KINDS
from sawlog._validate import one_of
from sawlog.errors import LogValueError
from sawlog.jax import _compat
from sawlog.jax._core.arrays import reshard, select, type_of, with_dtype, zeros


@dataclasses.dataclass(frozen=True)
class Reduction:
    """A custom reduction: ``init(like) -> state``, ``update(state, value) -> state`` and
    ``finish(state) -> result``.

    ``like`` and ``value`` are one entry, a pytree of arrays (``like`` is zeros). The state is a
    pytree whose structure, shapes and dtypes must not change. Under ``vmap`` every lane is reduced
    separately.

    >>> import jax.numpy as jnp, sawlog
    >>> ema = sawlog.Reduction(
    ...     "ema",
    ...     init=lambda like: jnp.zeros_like(like, dtype=jnp.float32),
    ...     update=lambda state, x: 0.5 * state + 0.5 * x,
    ...     finish=lambda state: state,
    ... )
    >>> logs = sawlog.logdict({"x": jnp.array([8.0, 4.0, 2.0])})
    >>> print(logs.reduce(ema)["x"])
    3.0
    """

    name: str
    init: Callable[[Any], Any]
    update: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]

    def __repr__(self) -> str:
        return f"Reduction({self.name!r})"


# -- compensated sums ------------------------------------------------------------------------------


def _accumulator(dtype: Any) -> Any:
    """Return the dtype to add in: float32 for half precision, int32 for small integers."""
    return _wide(_sum_dtype(dtype))


def _wide(dtype: Any) -> Any:
    """Widen floats to at least float32, without promotion, which may be strict."""
    return np.dtype(np.float32) if _is_float(dtype) and dtype.itemsize < 4 else dtype


def _is_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating))


def _float_of(dtype: Any) -> Any:
    """Return the dtype of a mean."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype  # including float8, which jnp.mean rejects
    return jax.eval_shape(jnp.mean, jax.ShapeDtypeStruct((1,), dtype)).dtype


def _exact_sum(dtype: Any) -> bool:
    return not jnp.issubdtype(dtype, jnp.inexact)


def _add(total: Any, rest: Any, x: Any) -> tuple[Any, Any]:
    """Add ``x`` to the double-word number ``total + rest``; ``rest`` is the rounding error.

    Exact up to twice the precision of the dtype: the rounding error of the addition is added to
    ``rest``, and the part of ``rest`` that ``total`` can represent is moved back.
    """
    new = total + x
    part = new - total
    lost = (total - (new - part)) + (x - part)
    rest = rest + jnp.where(jnp.isfinite(new), lost, 0)
    joined = new + rest
    return joined, jnp.where(jnp.isfinite(joined), rest - (joined - new), 0)


def _divide(total: Any, count: Any) -> Any:
    """Return ``total / max(count, 1)``, without promotion, which may be strict."""
    return total / jnp.maximum(count, 1).astype(total.dtype)


class _Sum:
    @staticmethod
    def init(like: Any) -> Any:
        blank = zeros(with_dtype(like, _accumulator(like.dtype)))
        return {"total": blank, "rest": blank}

    @staticmethod
    def update(state: Any, x: Any) -> Any:
        x = x.astype(state["total"].dtype)
        if _exact_sum(x.dtype):
            return {"total": state["total"] + x, "rest": state["rest"]}
        total, rest = _add(state["total"], state["rest"], x)
        return {"total": total, "rest": rest}


def _sum_result(state: Any, dtype: Any) -> Any:
    return (state["total"] + state["rest"]).astype(dtype)


# -- the table -------------------------------------------------------------------------------------


def _leafwise(
    name: str,
    init: Callable[[Any], Any],
    update: Callable[[Any, Any], Any],
    finish: Callable[[Any, Any], Any],
) -> Reduction:
    """Return a reduction that handles every leaf separately; ``finish`` also gets its dtype."""

    def start(like: Any) -> Any:
        leaves, tree = jax.tree.flatten(like)
        if REDUCTION_KINDS[name].accepts != "any" and any(
            jnp.issubdtype(x.dtype, jax.dtypes.extended) for x in leaves
        ):
            raise LogValueError(
                f"PRNG keys have no {name}. Hint: reduce them by 'first', 'last' or 'count', as in "
                'spool(f, reduce={"loss": "mean", "key": "last"}).'
            )
        return _LeafStates(tuple(map(init, leaves)), tree, tuple(leaf.dtype for leaf in leaves))

    def step(state: Any, value: Any) -> Any:
        leaves = jax.tree.leaves(value)
        new = tuple(map(update, state.leaves, leaves))
        return _LeafStates(new, state.tree, state.dtypes)

    def end(state: Any) -> Any:
        return jax.tree.unflatten(state.tree, map(finish, state.leaves, state.dtypes))

    return Reduction(name, start, step, end)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True)
class _LeafStates:
    """The state of every leaf; structure and dtypes are static."""

    leaves: tuple[Any, ...]
    tree: Any
    dtypes: tuple[Any, ...]

    def tree_flatten(self) -> Any:
        return (self.leaves,), (self.tree, self.dtypes)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> _LeafStates:
        return cls(children[0], *static)


def _mean() -> Reduction:
    def init(like: Any) -> Any:
        kind = with_dtype(like, _wide(_float_of(like.dtype)))
        return {"count": jnp.zeros((), np.int32), **_Sum.init(kind)}

    def update(state: Any, x: Any) -> Any:
        return {"count": state["count"] + 1, **_Sum.update(state, x)}

    def finish(state: Any, dtype: Any) -> Any:
        total = state["total"] + state["rest"]
        return _divide(total, state["count"]).astype(_float_of(dtype))

    return _leafwise("mean", init, update, finish)


def _spread(name: str, final: Callable[[Any], Any]) -> Reduction:
    """Return a variance: Welford's update of distances from the first value, compensated."""

    def init(like: Any) -> Any:
        blank = zeros(with_dtype(like, _wide(_float_of(like.dtype))))
        real = zeros(with_dtype(like, blank.real.dtype))
        return {
            "count": jnp.zeros((), np.int32),
            "origin": blank,
            "total": blank,
            "rest": blank,
            "squares": real,
            "squares_rest": real,
        }

    def update(state: Any, x: Any) -> Any:
        x = x.astype(state["total"].dtype)
        first = state["count"] == 0
        count = state["count"] + 1
        origin = select(first, x, state["origin"])
        away = x - origin
        before = _divide(state["total"] + state["rest"], state["count"])
        total, rest = _add(state["total"], state["rest"], away)
        after = _divide(total + rest, count)
        term = ((away - before) * jnp.conj(away - after)).real
        squares, squares_rest = _add(state["squares"], state["squares_rest"], term)
        return {
            "count": count,
            "origin": origin,
            "total": total,
            "rest": rest,
            "squares": squares,
            "squares_rest": squares_rest,
        }

    def finish(state: Any, dtype: Any) -> Any:
        variance = _divide(state["squares"] + state["squares_rest"], state["count"])
        real = jnp.zeros((), _float_of(dtype)).real.dtype
        return final(variance).astype(real)

    return _leafwise(name, init, update, finish)


def _extreme(name: str, choose: Callable[[Any, Any], Any]) -> Reduction:
    def init(like: Any) -> Any:
        return {"seen": jnp.zeros((), bool), "value": zeros(like)}

    def update(state: Any, x: Any) -> Any:
        value = select(state["seen"], choose(state["value"], x), x)
        return {"seen": state["seen"] | True, "value": value}

    return _leafwise(name, init, update, lambda state, dtype: state["value"])


def _first() -> Reduction:
    def init(like: Any) -> Any:
        return {"seen": jnp.zeros((), bool), "value": zeros(like)}

    def update(state: Any, x: Any) -> Any:
        value = select(state["seen"], state["value"], x)
        return {"seen": state["seen"] | True, "value": value}

    return _leafwise("first", init, update, lambda state, dtype: state["value"])


def _last(name: str) -> Reduction:
    return _leafwise(
        name,
        zeros,
        lambda state, x: x,
        lambda state, dtype: state,
    )


def _sum_dtype(dtype: Any) -> Any:
    """Return the dtype of a sum."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return dtype
    if jnp.issubdtype(dtype, jnp.integer) and jnp.iinfo(dtype).bits < 8:  # jnp.sum rejects it
        dtype = np.int8 if jnp.issubdtype(dtype, jnp.signedinteger) else np.uint8
    return jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), dtype)).dtype


_STREAMING = {
    "mean": _mean(),
    "sum": _leafwise(
        "sum",
        _Sum.init,
        _Sum.update,
        lambda state, dtype: _sum_result(state, _sum_dtype(dtype)),
    ),
    "min": _extreme("min", jnp.minimum),
    "max": _extreme("max", jnp.maximum),
    "first": _first(),
    "last": _last("last"),
    "replace": _last("replace"),
    "count": _leafwise(
        "count",
        lambda like: zeros(with_dtype(like, np.int32)),
        lambda state, x: state + 1,
        lambda state, dtype: state,
    ),
    "std": _spread("std", jnp.sqrt),
    "var": _spread("var", lambda variance: variance),
}

#: The streaming form of every row of the shared table.
REDUCTIONS: dict[str, Reduction] = {name: _STREAMING[name] for name in REDUCTION_KINDS}

MODES = ("append", *sorted(REDUCTIONS))

_CUSTOM = "define any other one as sawlog.Reduction(name, init, update, finish)."


def check_mode(mode: Any, option: str = "reduction") -> None:
    """Check a mode, or a dict of modes by name; ``option`` is the argument that it was given for.

    Raises:
        ArgumentError: a mode is neither a known name nor a :class:`Reduction`.
    """
    by_name = isinstance(mode, Mapping)
    for name, each in mode.items() if by_name else [(None, mode)]:
        if not isinstance(each, Reduction):
            shown = f"{option}[{name!r}]" if by_name else option
            one_of(shown, each, MODES, _CUSTOM, or_else="a sawlog.Reduction")


def reduction_of(mode: Any) -> Reduction | None:
    """Return the reduction of a mode; None for ``append``."""
    if isinstance(mode, Reduction):
        return mode
    return None if mode in (None, "append") else REDUCTIONS[mode]


def for_steps(mode: Reduction) -> Reduction:
    """Return the reduction of the step numbers: ``first``, ``mean`` or ``last``."""
    return REDUCTIONS[REDUCTION_KINDS[mode.name].steps if mode.name in REDUCTION_KINDS else "last"]


def begin(reduction: Reduction, like: Any) -> Any:
    """Return the initial state, where ``like`` is an entry of zeros.

    On an explicit mesh, give the state the sharding that an update would give it, so that ``init``
    of a custom reduction can ignore shardings.
    """
    state = reduction.init(like)
    if all(type_of(leaf).sharding is None for leaf in jax.tree.leaves(like)):
        return state
    leaves, tree = jax.tree.flatten((jax.tree.map(jnp.asarray, state), like))

    def flat(*args: Any) -> list[Any]:
        return jax.tree.leaves(reduction.update(*jax.tree.unflatten(tree, args)))

    after = _compat.trace_flat(flat, list(map(_compat.typeof, leaves)), "update").out_avals
    old, structure = jax.tree.flatten(state)
    if len(old) != len(after):
        return state  # the first update raises the error
    return jax.tree.unflatten(structure, map(_sharded_like, old, after))


def _sharded_like(array: Any, like: Any) -> Any:
    array = jnp.asarray(array)
    return reshard(array, like) if array.shape == like.shape else array
