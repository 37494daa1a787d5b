"""The primitive ``log``, and when it is bound.

Outside of sawlog's transformations ``log`` binds nothing: the program lowers to the same HLO as
without it and ``jit`` keeps its fast path. A transformation traces the function inside
``listening()``. That context is part of the key of every trace cache of JAX, so a function jitted
earlier is traced again, separately. The traced program then has one equation ``log`` for each call,
with an effect that keeps it alive through differentiation, control flow and dead-code elimination.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax

from sawlog.errors import LogPlacementError
from sawlog.jax import _compat
from sawlog.jax._core import lowering_marks
from sawlog.jax._core.site import Site

_LISTENING = "listening"
_WATCHING = "watching"
_context = jax.make_user_context(default_value=None)


def listening() -> Any:
    """Return a context in which ``log`` adds an equation to the traced program."""
    return _context(_LISTENING)


def watching() -> Any:
    """Return a context like ``listening()`` in which differentiated functions get probes."""
    return _context(_WATCHING)


def is_watching() -> bool:
    """Return whether ``sawlog.jax.watch`` traces a function."""
    return bool(_context.value == _WATCHING)


def not_listening() -> Any:
    """Return a context in which ``log`` does nothing, also inside ``listening()``."""
    return _context(None)


def context() -> Any:
    """Return the value of the current context; None outside of sawlog's transformations."""
    return _context.value


def in_context(value: Any) -> Any:
    """Return a context with another value, and so with separate trace caches."""
    return _context(value)


def is_listening() -> bool:
    """Return whether a transformation around the active trace records logs."""
    return _context.value in (_LISTENING, _WATCHING)


# -- primitives: a log for a handler, and a log that calls back to the host -----------------------


class LogEffect(_compat.Effect):
    """Keeps a log in the program until a handler has processed it."""

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

# Identities that log the gradient that flows back through them, see _rules/cotangent.py. They have
# no effect.
cotangent_p = _compat.Primitive("log_cotangent")
tangent_p = _compat.Primitive("log_cotangent_of")
PASSING_PRIMITIVES = (cotangent_p, tangent_p)


def has_site_effect(effects: Iterable[Any]) -> bool:
    """Return whether any of these effects is that of a log."""
    return any(isinstance(effect, LogEffect) for effect in effects)


def _batch(add_axis: Any, values: Any, dims: Any, *, site: Site, **params: Any) -> None:
    """Log in every lane: the mapped axis leads each operand, whether or not it was mapped.

    ``jacfwd`` and ``hessian`` are exceptions: their axis is that of the tangents of one forward
    pass, so a primal value without that axis is logged once.
    """
    primitive = tap_p if "receiver" in params else log_p
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
    """Raise: a log that is lowered was hidden from every transformation."""
    del ctx, args
    if lowering_marks.drops():
        return []
    raise LogPlacementError(
        f"The log of {', '.join(map(repr, site.keys))} at {site.where} is in a program that was "
        "traced inside spool, tap or a logger, and that a primitive hid from sawlog. Hint: move "
        "the log out of the function given to that primitive, or remove it there with "
        "sawlog.strip(...)."
    )


_compat.define_lowering(log_p, _lower, cacheable=False)


@log_p.def_impl
def _run_outside_of_a_trace(*operands: Any, site: Site) -> list[Any]:
    raise LogPlacementError(
        f"The log of {', '.join(map(repr, site.keys))} at {site.where} ran immediately instead of "
        "becoming part of the traced program, so no transformation can see it. Probably it is "
        "inside jax.ensure_compile_time_eval(). Hint: move the log out of that block."
    )
