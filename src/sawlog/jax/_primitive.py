"""``log`` and its primitive.

While nobody listens ``log`` binds nothing at all: the program lowers to the same HLO as without it
and ``jit`` keeps its fast path. A transformation of sawlog listens by tracing the function inside
``listening()``; the context is part of the key of every trace cache of JAX, so a function jitted
earlier is traced anew, separately. The traced program then has one equation ``log`` for each call,
with an effect that keeps it alive through differentiation, control flow and dead-code elimination.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sawlog.errors import LogPlacementError, LogValueError
from sawlog.jax import _compat, _libraries, _marks
from sawlog.jax._reductions import check_mode
from sawlog.jax._site import Site

_LISTENING = "listening"
_context = jax.make_user_context(default_value=None)


def listening() -> Any:
    """While this context is entered, ``log`` leaves an equation in what is traced."""
    return _context(_LISTENING)


def unheard() -> Any:
    """While this context is entered, ``log`` does nothing, whoever listens further out."""
    return _context(None)


def context() -> Any:
    """What the present trace is for; None where nobody listens."""
    return _context.value


def in_context(value: Any) -> Any:
    """Trace for something else, in caches of its own."""
    return _context(value)


def is_listening() -> bool:
    """Whether a transformation around the present trace wants to see logs."""
    return bool(_context.value == _LISTENING)


# -- the two primitives: a log that waits for a handler, and one that calls back -------------------


class LogEffect(_compat.Effect):
    """Keeps a log in the program until a handler has taken it."""

    __str__ = lambda self: "Log"  # noqa: E731

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other)

    def __hash__(self) -> int:
        return hash(type(self))


class TapEffect(LogEffect):
    """Keeps host calls of ``tap`` in the program, and in order."""

    __str__ = lambda self: "Tap"  # noqa: E731


log_effect = LogEffect()
tap_effect = TapEffect()

log_p = _compat.Primitive("log")
tap_p = _compat.Primitive("tap")
SITE_PRIMITIVES = (log_p, tap_p)

# Identities that log what flows back through them, see _cotangent.py. They have no effect.
cotangent_p = _compat.Primitive("log_cotangent")
tangent_p = _compat.Primitive("log_cotangent_of")
PASSING_PRIMITIVES = (cotangent_p, tangent_p)


def has_site_effect(effects: Iterable[Any]) -> bool:
    """Whether any of these effects belongs to a log site."""
    return any(isinstance(effect, LogEffect) for effect in effects)


def _batch(add_axis: Any, values: Any, dims: Any, *, site: Site, **params: Any) -> None:
    """Every lane logs: the mapped axis leads each operand, whether or not it was mapped.

    Not so for ``jacfwd`` and ``hessian``, whose axis is that of the tangents of one forward pass: a
    primal value without that axis is logged once.
    """
    primitive = tap_p if "target" in params else log_p
    shared = site.forward_mode and _compat.inside_jacfwd()
    site = dataclasses.replace(site, forward_mode=False)
    if not shared or any(dim is not None for dim in dims):
        values = [add_axis(value, dim) for value, dim in zip(values, dims, strict=True)]
        site = dataclasses.replace(site, batch=site.batch + 1)
    primitive.bind(*values, site=site, **params)


def _mark_forward_mode(params: dict[str, Any]) -> dict[str, Any]:
    return {**params, "site": dataclasses.replace(params["site"], forward_mode=True)}


def _define(primitive: Any, effect: Any) -> None:
    primitive.multiple_results = True
    primitive.def_effectful_abstract_eval(lambda *avals, **params: ([], {effect}))
    _compat.register_effect(type(effect), ordered=effect is tap_effect)
    _compat.define_silent_autodiff(primitive, primitive.bind)
    _compat.define_batching(primitive, _batch)
    _compat.define_in_forward_mode(primitive, _mark_forward_mode)


_define(log_p, log_effect)
_define(tap_p, tap_effect)


def _lower(ctx: Any, *args: Any, site: Site) -> list[Any]:
    """A log that is still there when a program is lowered was hidden from every transformation."""
    del ctx, args
    if _marks.drops():
        return []
    raise LogPlacementError(
        f"The log of {', '.join(map(repr, site.keys))} at {site.where} stands in a program that "
        "was traced while somebody listened, and that a primitive hid from sawlog. Hint: move the "
        "log out of the function given to that primitive, or drop it there with sawlog.strip(...)."
    )


_compat.define_lowering(log_p, _lower, cacheable=False)


@log_p.def_impl
def _run_outside_of_a_trace(*operands: Any, site: Site) -> list[Any]:
    raise LogPlacementError(
        f"The log of {', '.join(map(repr, site.keys))} at {site.where} ran at once instead of "
        "becoming part of the traced program, so no transformation can see it. Probably it stands "
        "inside jax.ensure_compile_time_eval(). Hint: move the log out of that block."
    )


# -- log ------------------------------------------------------------------------------------------

_HERE = os.path.dirname(os.path.abspath(__file__))
_compat.exclude_from_tracebacks(_HERE)


def log(*args: Any, **options: Any) -> None:
    """Log named values from anywhere inside a JAX program.

    ``log(data, /, *, tags=(), prefix="", **steps)`` takes a dict of pytrees;
    ``log(name, value, /, *, reduction=None, tags=(), **steps)`` takes one value. Values are arrays
    of any dtype, PRNG keys, Python scalars, or pytrees of those. Every other keyword is a step
    axis: ``step=i, episode=e``. On its own a log does nothing; :func:`sawlog.spool`,
    :func:`sawlog.tap` and the loggers decide outside what becomes of it.

    >>> import jax, sawlog
    >>> @jax.jit
    ... def f(x):
    ...     sawlog.log({"x": x}, step=0)
    ...     return 2 * x
    >>> y, logs = sawlog.spool(f)(3.0)
    >>> print(y, logs["x"], logs.step["x"])
    6.0 3.0 0

    Raises:
        LogValueError: the arguments have another form, or a value is not an array or scalar.
    """
    site, operands = read_site(args, options)
    if site is None:
        return
    if not is_listening():
        _marks.check_heard(site)
    elif not _libraries.only_probing():
        _support_jet()
        log_p.bind(*operands, site=site)


def _support_jet() -> None:
    """Under ``jax.experimental.jet``, which has a table of its own, the primal value is logged."""
    jet = sys.modules.get("jax.experimental.jet")
    if jet is not None:
        jet.jet_rules.setdefault(log_p, _log_primal)


def _log_primal(primals: Any, series: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    del series
    log_p.bind(*primals, **params)
    return [], []


def read_site(args: tuple, options: dict[str, Any]) -> tuple[Site | None, list[Any]]:
    """The site and the operands of a call of ``log``; no site where there is nothing to log.

    Raises:
        LogValueError: the arguments have another form, or a value is not an array or scalar.
    """
    where = _caller()
    options = dict(options)
    tags = _as_names(options.pop("tags", ()), "tags", where)
    data, reduction = _read_arguments(args, options, where)
    _check_step_names(options, where)
    steps = dict(sorted(options.items()))
    flat = {key: jax.tree.flatten(value) for key, value in data.items()}
    flat = {key: (leaves, tree) for key, (leaves, tree) in flat.items() if leaves}
    for key, (leaves, _) in flat.items():
        for leaf in leaves:
            _check_value(leaf, f"the value of {key!r}", where)
    for name, step in steps.items():
        _check_value(step, f"the step {name!r}", where)
    if not flat:
        return None, []
    site = Site(
        keys=tuple(flat),
        trees=tuple(tree for _, tree in flat.values()),
        steps=tuple(steps),
        tags=tags,
        reduction=reduction,
        where=where,
    )
    leaves = [leaf for leaves, _ in flat.values() for leaf in leaves]
    return site, [*leaves, *steps.values()] if not is_listening() else [
        _as_array(x) for x in (*leaves, *steps.values())
    ]


def _as_array(value: Any) -> Any:
    """An array whose type does not depend on how the value was written: ``1`` or ``int32(1)``."""
    array = jnp.asarray(value)
    return lax.convert_element_type(array, array.dtype) if _compat.is_weak(array) else array


def _read_arguments(args: tuple, options: dict[str, Any], where: str) -> tuple[dict, Any]:
    if len(args) == 1 and isinstance(args[0], dict):
        prefix = options.pop("prefix", "")
        if not isinstance(prefix, str):
            raise LogValueError(f"log at {where}: prefix must be a string, got {prefix!r}.")
        if "reduction" in options:
            raise LogValueError(
                f"log at {where}: 'reduction' goes with one value, as in "
                'log("loss", loss, reduction="mean"), not with a dict. Hint: give it to '
                "spool(f, reduce=...) or log the values one by one."
            )
        for key in args[0]:
            _check_key(key, where)
        return {prefix + key: value for key, value in args[0].items()}, None
    if len(args) == 2:
        _check_key(args[0], where)
        reduction = options.pop("reduction", None)
        if reduction is not None:
            check_mode(reduction)
        return {args[0]: args[1]}, reduction
    got = ", ".join(type(arg).__name__ for arg in args) or "nothing"
    raise LogValueError(
        f"log at {where} takes a dict of values, as in log({{'loss': loss}}, step=i), or a name "
        f"and a value, as in log('loss', loss, step=i); it got {got}."
    )


def _check_key(key: Any, where: str) -> None:
    if not isinstance(key, str) or not key:
        raise LogValueError(f"log at {where}: names must be non-empty strings, got {key!r}.")


def _check_step_names(steps: dict[str, Any], where: str) -> None:
    from sawlog.jax._logdict import RESERVED

    for name in steps:
        if name in RESERVED or name.startswith("_"):
            raise LogValueError(
                f"log at {where}: a step axis cannot be called {name!r}, because logs.{name} means "
                "something else. Hint: choose another name for the step."
            )


def _check_value(value: Any, what: str, where: str) -> None:
    if not _compat.is_tracer(value) and isinstance(value, (int, float, np.generic, np.ndarray)):
        _check_number(np.asarray(value), what, where)
    if not _compat.is_jax_value(value) or isinstance(value, jax.ShapeDtypeStruct):
        raise LogValueError(
            f"log at {where}: {what} is of type {type(value).__name__}, which JAX cannot hold. "
            "Hint: log arrays, Python numbers, PRNG keys or pytrees of those."
        )


def _check_number(array: np.ndarray, what: str, where: str) -> None:
    """Refuse what JAX would cut to fewer bits and so turn into another number."""
    kind = array.dtype.kind
    whole = kind == "O" and all(isinstance(x, int) for x in array.flat)  # too large for numpy
    if kind in "MmSU" or (kind == "O" and not whole):
        raise LogValueError(
            f"log at {where}: {what} has the dtype {array.dtype}, which JAX cannot hold. "
            "Hint: log arrays, Python numbers, PRNG keys or pytrees of those."
        )
    if not whole and (kind not in "iuf" or array.dtype.itemsize < 8):
        return
    to = jax.dtypes.canonicalize_dtype(np.int64 if whole else array.dtype)
    bounds = np.finfo(to) if kind == "f" else np.iinfo(to)
    known = array[np.isfinite(array)] if kind == "f" else array.reshape(-1)
    outside = known[(known < bounds.min) | (known > bounds.max)]
    if outside.size:
        raise LogValueError(
            f"log at {where}: {what} has the number {outside[0]}, which does not fit into {to}, "
            "and JAX would make another one of it. Hint: log a float, split it into two numbers, "
            'or jax.config.update("jax_enable_x64", True).'
        )


def _as_names(names: Any, what: str, where: str) -> tuple[str, ...]:
    several = (names,) if isinstance(names, str) else names
    listed = tuple(several) if isinstance(several, Iterable) else (None,)
    if not all(isinstance(name, str) for name in listed):
        raise LogValueError(f"log at {where}: {what} must be a string or strings, got {names!r}.")
    return listed


def _caller() -> str:
    """``file:line (function)`` of the innermost frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
