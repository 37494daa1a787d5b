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
import numpy as np

from sawlog.errors import LogPlacementError
from sawlog.jax import _compat
from sawlog.jax._core import libraries as _libraries
from sawlog.jax._core import lowering_marks as _marks
from sawlog.jax._core.log_arguments import read_site
from sawlog.jax._core.site import Site
from sawlog.jax._logdict.entries import parts_of_site
from sawlog.jax._logdict.logdict import logdict

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
_compat.exclude_from_tracebacks(os.path.join(os.path.dirname(os.path.dirname(_HERE)), "_log.py"))


def log(*args: Any, **options: Any) -> Any:
    """Log named values from anywhere inside a JAX program.

    ``log(data, /, *, where=None, tags=(), prefix="", **steps)`` takes a dict of pytrees;
    ``log(name, value, /, *, reduction=None, where=None, tags=(), **steps)`` takes one value. Values
    are arrays of any dtype, PRNG keys, Python scalars, or pytrees of those. Every other keyword is
    a step axis: ``step=i, episode=e``. On its own a log does nothing; :func:`sawlog.spool`,
    :func:`sawlog.tap` and the loggers decide outside what becomes of it.

    With ``where=condition`` it is logged only where the condition holds, as in a branch of
    ``lax.cond``. A condition with axes is one for each lane, as under ``vmap``: values and mask
    have these axes in front.

    Returns:
        A :class:`sawlog.logdict` of what was given, for programs that pass logs on by hand. Inside
        a branch, the body of a loop or the like it is None, so that ``lax.cond(p, lambda: log(...),
        lambda: None)`` has branches of the same structure.

    >>> import jax, sawlog
    >>> @jax.jit
    ... def f(x):
    ...     sawlog.log({"x": x}, step=0)
    ...     sawlog.log({"negative": x}, where=x < 0)
    ...     return 2 * x
    >>> y, logs = sawlog.spool(f)(3.0)
    >>> print(y, logs["x"], logs.step["x"], list(logs))
    6.0 3.0 0 ['x']

    Raises:
        LogValueError: the arguments have another form, or a value is not an array or scalar.
    """
    site, operands = read_site(args, options, as_arrays=is_listening())
    if site is None:
        return _returned(logdict())
    if not is_listening():
        _marks.check_heard(site)
    elif not _libraries.only_probing():
        _support_jet()
        log_p.bind(*operands, site=site)
    given = [x.copy() if isinstance(x, np.ndarray) else x for x in operands]
    if site.masked:
        given = [np.asarray(x) if isinstance(x, (int, float, complex)) else x for x in given]
    logs = logdict._of(parts_of_site(site, site.split(given)))
    if site.masked:
        logs._settle_later()
    return _returned(logs)


def _returned(logs: logdict) -> logdict | None:
    return None if _compat.inside_inner_function() else logs


def _support_jet() -> None:
    """Under ``jax.experimental.jet``, which has a table of its own, the primal value is logged."""
    jet = sys.modules.get("jax.experimental.jet")
    if jet is not None:
        jet.jet_rules.setdefault(log_p, _log_primal)


def _log_primal(primals: Any, series: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    del series
    log_p.bind(*primals, **params)
    return [], []
