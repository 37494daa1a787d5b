"""Patches for ``vmap`` of ``cond`` and ``while_loop``: only the lanes that run count as logged.

If the predicate is mapped, JAX runs both branches, or the body for lanes that have stopped, and
selects. A log would be seen for lanes that never reach it. So the batching rules of both are
wrapped: each log inside gets a mask that says whether its lane is running.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from jax import lax
from jax import numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import cond_p, scan_p, while_p

from sawlog.jax import _compat
from sawlog.jax._core import arrays
from sawlog.jax._core.handler import DropLogs
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.primitive import SITE_PRIMITIVES
from sawlog.jax._rules.masking import MaskLogs, has_logs, run_masked

_conds = itertools.count()

Unhide = Callable[[dict[str, Any]], dict[str, Any] | None]

_hidden_lanes: dict[Any, Unhide] = {}


def register_hidden_lanes(primitive: Any) -> Callable[[Unhide], Unhide]:
    """Register ``unhide`` for loops whose predicate does not say which lanes are running.

    ``unhide(params)`` returns the parameters with all logs masked, or None for other loops.
    """

    def register(unhide: Unhide) -> Unhide:
        _hidden_lanes[primitive] = unhide
        return unhide

    return register


def _batch_cond(rule: Callable[..., Any]) -> Callable[..., Any]:
    def masked(branch: Any, cond: int, position: int, index_aval: Any) -> Any:
        """Return the branch with the index as one more operand."""

        def flat(*args: Any) -> list[Any]:
            *operands, index = args
            return run_masked(branch, operands, MaskLogs(index == position, ((cond, position),)))

        return _compat.trace_flat(flat, [*branch.in_avals, index_aval], "branch")

    def batch(axis_data: Any, args: Any, dims: Any, *, branches: Any, **params: Any) -> Any:
        if dims[0] is not None and any(map(has_logs, branches)):
            index = _compat.lane_aval(args[0], dims[0])
            cond = next(_conds)
            branches = tuple(masked(branch, cond, i, index) for i, branch in enumerate(branches))
            args, dims = (*args, args[0]), (*dims, dims[0])
        if dims[0] is not None and _is_refused(axis_data, args, dims, branches):
            return _select_branches(axis_data, args, dims, branches)
        return rule(axis_data, args, dims, branches=branches, **params)

    return batch


def _is_refused(axis_data: Any, args: Any, dims: Any, branches: Sequence[Any]) -> bool:
    """Return whether JAX's own rule raises an error for these shardings.

    Logs can give a branch operands or outputs that are sharded along other axes than the mapped
    one, or that have no mesh in their type.
    """
    if any(map(arrays.is_sharded_beside, args, dims)):
        return True
    types = [*args, *(aval for branch in branches for aval in branch.out_avals)]
    meshless = any(arrays.type_of(x).sharding is None for x in types)
    return meshless and axis_data.explicit_mesh_axis is not None


def _select_branches(axis_data: Any, args: Any, dims: Any, branches: Sequence[Any]) -> Any:
    """Run all branches and select, like JAX's rule, with the shardings of the operands."""
    index, *operands = map(_compat.axis_adder(axis_data, args, dims), args, dims)
    lane = [_compat.lane_aval(x, 0) for x in operands]

    def on_mesh(branch: Any) -> Any:
        def flat(*args: Any) -> list[Any]:
            outs = jaxpr_as_fun(branch)(*args)
            return [arrays.reshard(x, arrays.beside(lane, x, 0)) for x in outs]

        return _compat.batch_program(_compat.trace_flat(flat, lane, "branch"), axis_data)

    outs: list[Any] = []
    for position, branch in enumerate(branches):
        here = index == position
        # A lane that does not run a branch gets no gradient from it, not even a nan.
        own = [arrays.select(here, x, lax.stop_gradient(x)) for x in operands]
        new = jaxpr_as_fun(on_mesh(branch))(*own)
        outs = [arrays.select(here, x, y) for x, y in zip(new, outs or new, strict=True)]
    return outs, [0] * len(outs)


def _batch_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Add a value in front of the carry: whether the lane was running in the last iteration.

    A ``vmap`` inside that gave the condition lanes has masked the logs for them. Logs may have
    further lanes in front, of maps that the condition does not depend on. So the mask is a scalar
    then: whether any of the lanes inside is running.
    """

    def masked_cond(cond: Any, consts: int, running: Any) -> Any:
        def flat(*args: Any) -> list[Any]:
            here, *carry = args[consts:]
            return run_masked(cond, [*args[:consts], *carry], MaskLogs(_any(here)))

        return _compat.trace_flat(flat, _insert(cond.in_avals, consts, running), "cond")

    def masked_body(cond: Any, conds: int, body: Any, bodies: int, running: Any) -> Any:
        silent = jaxpr_as_fun(_without_sites(cond))
        consts = conds + bodies

        def flat(*args: Any) -> list[Any]:
            _, *carry = args[consts:]
            (here,) = silent(*args[:conds], *carry)
            mask = MaskLogs(_any(here))
            return [here, *run_masked(body, [*args[conds:consts], *carry], mask)]

        avals = [*cond.in_avals[:conds], *body.in_avals]
        return _compat.trace_flat(flat, _insert(avals, consts, running), "body")

    def batch(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        loop = _compat.While.read(params)
        cond, body, conds, bodies = loop.cond, loop.body, loop.cond_consts, loop.body_consts
        if not has_logs(body) and not has_logs(cond):
            return rule(axis_data, args, dims, **params)
        unhidden = _hidden_lanes[while_p](params)
        if unhidden is not None:
            return rule(axis_data, args, dims, **unhidden)
        running = cond.out_avals[0]
        params = loop.changed(
            cond=masked_cond(cond, conds, running),
            body=masked_body(cond, conds, body, bodies, running),
            body_consts=conds + bodies,
        )
        start = conds + bodies
        here = arrays.ones(running)
        args = [*args[:conds], *args[:start], here, *args[start:]]
        dims = [*dims[:conds], *dims[:start], None, *dims[start:]]
        outs, out_dims = rule(axis_data, args, dims, **params)
        return outs[1:], out_dims[1:]

    return batch


def _batch_scan(rule: Callable[..., Any]) -> Callable[..., Any]:
    def batch(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        has_any = has_logs(_compat.Scan.read(params).body)
        unhidden = _hidden_lanes[scan_p](params) if has_any else None
        return rule(axis_data, args, dims, **(unhidden or params))

    return batch


def _any(here: Any) -> Any:
    return jnp.any(here) if here.ndim else here


def _insert(avals: Sequence[Any], position: int, aval: Any) -> list[Any]:
    return [*avals[:position], aval, *avals[position:]]


def _without_sites(closed: Any) -> Any:
    return Interpreter(DropLogs(SITE_PRIMITIVES)).trace(closed).closed


_compat.batch_pvary_of_varying()
_compat.wrap_batching(cond_p, _batch_cond)
_compat.wrap_batching(scan_p, _batch_scan)
_compat.wrap_batching(while_p, _batch_while)
