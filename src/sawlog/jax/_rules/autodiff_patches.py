"""A log runs as often as the program comes there, though JAX would run it once, twice or never.

Two habits of differentiation need a hand. Work that does not change from one iteration to the next
is hoisted out of a differentiated ``scan``; a log must stay in its loop. And a ``while_loop`` that
is linearised, or differentiated inside ``checkpoint``, is run for its known part and again for the
rest; the second run must not log. Besides, JAX does not know of effects in the functions of some
primitives, and drops their equations when nobody uses the result; and it does not batch those none
of whose operands is mapped, though every lane logs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core.primitives import cond_p, jit_p, remat_p, scan_p, while_p

from sawlog.jax import _compat
from sawlog.jax._core.handler import Drop, Handler
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


def _stays(params: dict[str, Any]) -> bool:
    return context() == _HOISTING and _has_sites(params)


def _silenced(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of an equation without the logs inside."""
    return Interpreter(Drop(SITE_PRIMITIVES)).clean(params) if _has_sites(params) else params


class _MarkForward(Handler):
    """The handler that marks logs as running inside ``jax.jvp``."""

    primitives = SITE_PRIMITIVES

    def wants(self, site: Site) -> bool:
        """Every log."""
        del site
        return True

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Bind the log again, marked."""
        primitive.bind(*operands, site=dataclasses.replace(site, forward_mode=True), **params)
        return ()


def _jvp_of_while(rule: Any) -> Any:
    """The condition is not differentiated, so its logs must be marked by hand."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        loop = _compat.While.read(params)
        if has_site_effect(loop.cond.effects):
            params = loop.changed(cond=Interpreter(_MarkForward()).trace(loop.cond).closed)
        return rule(primals, tangents, **params)

    return jvp


def _jvp_of_reduce(rule: Any) -> Any:
    """Its rule runs the function in another order, and more often, than the reduction does."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        if _has_sites(params):
            walk = Interpreter(Drop(SITE_PRIMITIVES))
            sites = [s.where for inner in _compat.subjaxprs(params) for s in walk.sites_of(inner)]
            raise unsupported(_compat.reduce_p, "", sites)
        return rule(primals, tangents, **params)

    return jvp


_STAGED = (*SITE_PRIMITIVES, jit_p, cond_p, scan_p, while_p, remat_p)


class _IntoJits(Interpreter):
    """The walk that puts an equation which cannot be told to stay into a ``jit``, which can."""

    def equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], Streams]:
        """Bind the equation, perhaps inside of a ``jit``."""
        bind = functools.partial(_compat.bind_equation, eqn)
        if _stays_if_told(eqn):
            return bind(values), ()
        return jax.jit(lambda *values: bind(values))(*values), ()


def _stays_if_told(eqn: Any) -> bool:
    return eqn.primitive in _STAGED or not _has_sites(eqn.params)


def _can_stay(body: Any) -> Any:
    """The body of a loop in which every equation with logs can be told to stay."""
    if all(map(_stays_if_told, getattr(body, "jaxpr", body).eqns)):
        return body
    return _IntoJits(Handler()).trace(body).closed


def _shows_effects(primitive: Any) -> bool:
    """Whether JAX knows of effects inside of this primitive, as of all that sawlog rebuilds."""
    return primitive in SITE_PRIMITIVES or (
        has_rule(primitive) and primitive is not _compat.composite_p
    )


_compat.stage_instead_of_running(_STAGED, _stays)
_compat.wrap_scan_hoisting(has_site_effect, lambda: in_context(_HOISTING), _can_stay)
_compat.show_effects_inside(_shows_effects, lambda: context() is not None, has_site_effect)
_compat.batch_logs_of_unmapped(_compat.composite_p, has_site_effect)
_compat.batch_logs_of_unmapped(_compat.custom_vmap_p, has_site_effect)
_compat.wrap_while_recomputation(_silenced)
_compat.wrap_jvp(while_p, _jvp_of_while)
_compat.wrap_jvp(_compat.reduce_p, _jvp_of_reduce)
_compat.forget_kept_effects()
