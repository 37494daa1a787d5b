"""Patches of JAX's rules, so that a log runs exactly as often as the program reaches it.

- JAX hoists loop-invariant work out of a differentiated ``scan``; a log must stay in its loop.
- A ``while_loop`` that is linearized, or differentiated inside ``checkpoint``, runs for its known
  part and again for the rest; the second run must not log.
- JAX ignores effects in the functions of some primitives, and removes their equations if the result
  is not used.
- JAX does not batch a call none of whose operands is mapped, though every lane logs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core.primitives import cond_p, jit_p, remat_p, scan_p, while_p

from sawlog.jax import _compat
from sawlog.jax._core.handler import DropLogs, Handler
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import (
    SITE_PRIMITIVES,
    context,
    has_site_effect,
    in_context,
)
from sawlog.jax._core.registry import has_rule, unsupported
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams

_HOISTING = "hoisting"


def _has_sites(params: dict[str, Any]) -> bool:
    return "site" in params or any(has_site_effect(j.effects) for j in _compat.subjaxprs(params))


def _must_stage(params: dict[str, Any]) -> bool:
    return context() == _HOISTING and _has_sites(params)


def _without_logs(params: dict[str, Any]) -> dict[str, Any]:
    """Remove the logs inside the parameters of an equation."""
    return (
        Interpreter(DropLogs(SITE_PRIMITIVES)).rewrite_params(params)
        if _has_sites(params)
        else params
    )


class _MarkForwardMode(Handler):
    """A handler that marks logs as running inside ``jax.jvp``."""

    primitives = SITE_PRIMITIVES

    def wants(self, site: Site) -> bool:
        """Return True for every log."""
        del site
        return True

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Bind the log again with the mark."""
        primitive.bind(*operands, site=dataclasses.replace(site, forward_mode=True), **params)
        return ()


def _holds_sites(primitive: Any, params: dict[str, Any]) -> bool:
    """Return whether an equation that a transformation traces has logs inside, and a rule."""
    return context() is not None and has_rule(primitive) and _has_sites(params)


def _marked(params: dict[str, Any]) -> dict[str, Any]:
    return Interpreter(_MarkForwardMode()).rewrite_params(params)


def _jvp_of_while(rule: Any) -> Any:
    """Mark the logs of the condition, which the rule of JAX does not differentiate."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        loop = _compat.While.read(params)
        if has_site_effect(loop.cond.effects):
            params = loop.changed(cond=Interpreter(_MarkForwardMode()).trace(loop.cond).closed)
        return rule(primals, tangents, **params)

    return jvp


def _jvp_of_reduce(rule: Any) -> Any:
    """Raise if ``lax.reduce`` logs: its rule runs the function more often, in another order."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        if _has_sites(params):
            interpreter = Interpreter(DropLogs(SITE_PRIMITIVES))
            sites = [
                s.where for inner in _compat.subjaxprs(params) for s in interpreter.sites_of(inner)
            ]
            raise unsupported(_compat.reduce_p, "", sites)
        return rule(primals, tangents, **params)

    return jvp


_STAGED = (*SITE_PRIMITIVES, jit_p, cond_p, scan_p, while_p, remat_p)


class _WrapInJit(Interpreter):
    """An interpreter that wraps equations in ``jit`` which ``_must_stage`` does not cover."""

    def equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], Streams]:
        """Bind the equation, inside a ``jit`` if needed."""
        bind = functools.partial(_compat.bind_equation, eqn)
        if _is_stageable(eqn):
            return bind(values), ()
        return jax.jit(lambda *values: bind(values))(*values), ()


def _is_stageable(eqn: Any) -> bool:
    """Return whether ``stage_instead_of_running`` covers the logs of an equation."""
    return eqn.primitive in _STAGED or not _has_sites(eqn.params)


def _stageable(body: Any) -> Any:
    """Return the body of a loop in which every equation with logs can be staged."""
    if all(map(_is_stageable, getattr(body, "jaxpr", body).eqns)):
        return body
    return _WrapInJit(Handler()).trace(body).closed


def _shows_effects(primitive: Any) -> bool:
    """Return whether JAX reports effects inside a primitive: it does for those with a rule."""
    return primitive in SITE_PRIMITIVES or (
        has_rule(primitive) and primitive is not _compat.composite_p
    )


_compat.mark_without_tangents(_holds_sites, _marked)
_compat.stage_instead_of_running(_STAGED, _must_stage)
_compat.wrap_scan_hoisting(has_site_effect, lambda: in_context(_HOISTING), _stageable)
_compat.show_effects_inside(_shows_effects, lambda: context() is not None, has_site_effect)
_compat.batch_logs_of_unmapped(_compat.composite_p, has_site_effect)
_compat.batch_logs_of_unmapped(_compat.custom_vmap_p, has_site_effect)
_compat.wrap_while_recomputation(_without_logs, has_site_effect)
_compat.wrap_jvp(while_p, _jvp_of_while)
_compat.wrap_jvp(_compat.reduce_p, _jvp_of_reduce)
_compat.forget_kept_effects()
