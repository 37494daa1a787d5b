"""Loops of equinox, on which diffrax and optimistix stand; equinox itself is never imported.

``equinox.internal.while_loop`` hides from ``vmap`` that its lanes stop at different times: the
predicate that JAX sees is that of all lanes together, and the state of lanes that are done is
selected away at the end of each turn. Which lanes those are is told by the selecting equations, so
logs inside are masked by what these select by.

Differentiated, a loop of the kind "checkpointed" runs its body again in the backward pass. What is
logged on the way forward counts, and what flows back; what is computed again does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core.primitives import cond_p, scan_p, while_p

from sawlog.jax import _compat
from sawlog.jax._core.handler import Drop
from sawlog.jax._core.interpreter import Interpreter, register_preparation
from sawlog.jax._core.primitive import SITE_PRIMITIVES
from sawlog.jax._core.stream import Streams
from sawlog.jax._rules.vmap_patches import Mask, has_logs, register_hidden_lanes, run_masked


@register_preparation(while_p)
def prepare_while(eqn: Any) -> Any:
    """A loop of the kind "lax" or "checkpointed", with logs where the program really comes."""
    loop = _compat.While.read(eqn.params)
    cond, body = loop.cond, loop.body
    if "checkpointed-bwd" in _compat.scopes(eqn):
        body = _Backwards().rewrite(body).closed
    if _produces(cond.jaxpr, "unvmap_any"):
        # The condition was evaluated already, for this lane alone, at the end of the turn before.
        cond = Interpreter(Drop(SITE_PRIMITIVES)).rewrite(cond).closed
    params = loop.changed(cond=cond, body=body)
    return eqn.replace(params=mask_while(params) or params)


@register_preparation(scan_p)
def prepare_scan(eqn: Any) -> Any:
    """The loop of the kind "bounded"."""
    params = mask_scan(eqn.params)
    return eqn if params is None else eqn.replace(params=params)


@register_hidden_lanes(while_p)
def mask_while(params: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters with logs masked by what lanes are there; None where nothing tells."""
    loop = _compat.While.read(params)
    body = loop.body
    selects = [eqn for eqn in body.jaxpr.eqns if eqn.primitive.name == "select_if_vmap"]
    preds = [_copied(body.jaxpr, eqn.invars[0]) for eqn in selects]
    places = [i for i, var in enumerate(body.jaxpr.invars) if any(var is p for p in preds)]
    if len(places) != 1 or not has_logs(body):
        return None
    select, (place,) = selects[0].primitive, places

    def here(args: Sequence[Any]) -> Any:
        # True for good as long as there is no vmap, and then XLA takes the mask away again.
        return select.bind(args[place], jnp.array(True), jnp.array(False))

    return loop.changed(body=_masked(body, here))


@register_hidden_lanes(scan_p)
def mask_scan(params: dict[str, Any]) -> dict[str, Any] | None:
    """As :func:`mask_while`: the turns are branches that are taken while any lane is there."""
    loop = _compat.Scan.read(params)
    jaxpr = loop.body.jaxpr
    eqns = [_masked_turn(jaxpr, eqn) for eqn in jaxpr.eqns]
    if all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
        return None
    return loop.changed(_compat.with_equations(loop.body, eqns))


def _masked_turn(jaxpr: Any, eqn: Any) -> Any:
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
        return run_masked(closed, args, Mask(here(args)))

    return _compat.trace_flat(flat, closed.in_avals, "a turn of a loop")


class _Backwards(Interpreter):
    """Keeps of a turn of the backward pass what flows back, not what is computed again."""

    def __init__(self) -> None:
        super().__init__(Drop(SITE_PRIMITIVES))
        self._stripper = self

    def equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], Streams]:
        """What is transposed stays as it is; other logs are dropped."""
        if "transpose" in _compat.transforms(eqn):
            return _compat.bind_equation(eqn, values), ()
        return super().equation(eqn, values)


def _produces(jaxpr: Any, name: str) -> bool:
    return any(eqn.primitive.name == name for eqn in jaxpr.eqns)


def _copied(jaxpr: Any, var: Any) -> Any:
    """What a variable is a copy of."""
    makers = {id(out): eqn for eqn in jaxpr.eqns for out in eqn.outvars}
    while (eqn := makers.get(id(var))) is not None and eqn.primitive.name == "copy":
        (var,) = eqn.invars
    return var


def _comes_from(jaxpr: Any, var: Any, name: str) -> bool:
    """Whether a scalar is computed from the output of a primitive, through scalars alone."""
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
