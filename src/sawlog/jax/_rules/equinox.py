"""Loops of equinox, which diffrax and optimistix use; equinox itself is never imported.

``equinox.internal.while_loop`` hides from ``vmap`` that its lanes stop at different times: the
predicate that JAX sees is that of all lanes together, and a select at the end of each iteration
restores the state of lanes that have stopped. So logs inside are masked by the condition of these
selects.

A differentiated loop of the kind "checkpointed" runs its body again in the backward pass. Logs of
the forward pass and cotangents count; logs of the recomputation do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core.primitives import cond_p, scan_p, while_p

from sawlog.jax import _compat
from sawlog.jax._core.handler import DropLogs
from sawlog.jax._core.interpreter import Interpreter, register_preparation
from sawlog.jax._core.primitive import SITE_PRIMITIVES
from sawlog.jax._core.stream import Streams
from sawlog.jax._rules.masking import MaskLogs, has_logs, run_masked
from sawlog.jax._rules.vmap_patches import register_hidden_lanes


@register_preparation(while_p)
def prepare_while(eqn: Any) -> Any:
    """Mask and drop logs of a loop of the kind "lax" or "checkpointed" that must not count."""
    loop = _compat.While.read(eqn.params)
    cond, body = loop.cond, loop.body
    if "checkpointed-bwd" in _compat.scopes(eqn):
        body = _DropRecomputed().rewrite(body).closed
    if _produces(cond.jaxpr, "unvmap_any"):
        # The end of the previous iteration has evaluated the condition, for this lane alone.
        cond = Interpreter(DropLogs(SITE_PRIMITIVES)).rewrite(cond).closed
    params = loop.changed(cond=cond, body=body)
    return eqn.replace(params=mask_while(params) or params)


@register_preparation(scan_p)
def prepare_scan(eqn: Any) -> Any:
    """Mask logs of a loop of the kind "bounded"."""
    params = mask_scan(eqn.params)
    return eqn if params is None else eqn.replace(params=params)


@register_hidden_lanes(while_p)
def mask_while(params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the parameters with logs masked by running lanes; None for other loops."""
    loop = _compat.While.read(params)
    body = loop.body
    selects = [eqn for eqn in body.jaxpr.eqns if eqn.primitive.name == "select_if_vmap"]
    preds = [_copied(body.jaxpr, eqn.invars[0]) for eqn in selects]
    places = [i for i, var in enumerate(body.jaxpr.invars) if any(var is p for p in preds)]
    if len(places) != 1 or not has_logs(body):
        return None
    select, (place,) = selects[0].primitive, places

    def here(args: Sequence[Any]) -> Any:
        # Without vmap this is constant, and XLA removes the mask.
        return select.bind(args[place], jnp.array(True), jnp.array(False))

    return loop.changed(body=_masked(body, here))


@register_hidden_lanes(scan_p)
def mask_scan(params: dict[str, Any]) -> dict[str, Any] | None:
    """Mask a scan like :func:`mask_while`; iterations are branches that run while any lane does."""
    loop = _compat.Scan.read(params)
    jaxpr = loop.body.jaxpr
    eqns = [_masked_iteration(jaxpr, eqn) for eqn in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return None
    return loop.changed(_compat.with_equations(loop.body, eqns))


def _masked_iteration(jaxpr: Any, eqn: Any) -> Any:
    if eqn.primitive is not cond_p or not any(map(has_logs, _compat.branches_of(eqn))):
        return eqn
    if not _comes_from(jaxpr, eqn.invars[0], "unvmap_any"):
        return eqn
    return _compat.with_branches(eqn, list(map(_masked_branch, _compat.branches_of(eqn))))


def _masked_branch(branch: Any) -> Any:
    jaxpr = branch.jaxpr
    selects = [
        eqn
        for eqn in jaxpr.eqns
        if eqn.primitive.name == "select_n"
        and any(eqn.outvars[0] is out for out in jaxpr.outvars)
        and any(eqn.invars[1] is old for old in jaxpr.invars)
    ]
    preds = [var for var in jaxpr.invars if any(eqn.invars[0] is var for eqn in selects)]
    if len(preds) != 1 or preds[0].aval.shape or not has_logs(branch):
        return branch
    place = jaxpr.invars.index(preds[0])
    return _masked(branch, lambda args: args[place])


def _masked(closed: Any, here: Callable[[Sequence[Any]], Any]) -> Any:
    def flat(*args: Any) -> list[Any]:
        return run_masked(closed, args, MaskLogs(here(args)))

    return _compat.trace_flat(flat, closed.in_avals, "an iteration")


class _DropRecomputed(Interpreter):
    """An interpreter of the backward pass that drops logs of the recomputation."""

    def __init__(self) -> None:
        super().__init__(DropLogs(SITE_PRIMITIVES))
        self._stripper = self

    def equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], Streams]:
        """Bind equations of the transposition unchanged; drop other logs."""
        if "transpose" in _compat.transforms(eqn):
            return _compat.bind_equation(eqn, values), ()
        return super().equation(eqn, values)


def _produces(jaxpr: Any, name: str) -> bool:
    return any(eqn.primitive.name == name for eqn in jaxpr.eqns)


def _copied(jaxpr: Any, var: Any) -> Any:
    """Follow copies back to the original variable."""
    makers = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    while (eqn := makers.get(id(var))) is not None and eqn.primitive.name == "copy":
        (var,) = eqn.invars
    return var


def _comes_from(jaxpr: Any, var: Any, name: str) -> bool:
    """Return whether a scalar depends on the output of a primitive, through scalars only."""
    if not _produces(jaxpr, name):
        return False
    makers = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    todo, seen = [var], set()
    while todo:
        eqn = makers.get(id(todo.pop()))
        if eqn is None or id(eqn) in seen or any(out.aval.shape for out in eqn.outvars):
            continue
        if eqn.primitive.name == name:
            return True
        seen.add(id(eqn))
        todo.extend(eqn.invars)
    return False
