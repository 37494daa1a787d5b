"""Branches: ``cond`` and ``switch``, whose branches may log different things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import cond_p

from sawlog.jax import _compat
from sawlog.jax._core.branch_slots import over_branches, plan_branches
from sawlog.jax._core.interpreter import Interpreter, Rewritten
from sawlog.jax._core.registry import register_rule
from sawlog.jax._core.stream import Streams


@register_rule(cond_p)
def cond(interpreter: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Find out what every branch logs, then rebuild each to return the same streams.

    branch: [operands] -> [outputs] becomes

    [hoisted of all branches, carry, operands] -> [outputs, streams, carry]
    """
    branches = _compat.branches_of(eqn)
    slots = plan_branches([interpreter.rewrite(branch).stream_types for branch in branches])
    rewritten = [
        interpreter.trace(branch, finish=lambda streams: over_branches(slots, streams))
        for branch in branches
    ]
    names = interpreter.carried_by(interpreter.sites_in(eqn))
    index, *operands = values
    before = [*(value for new in rewritten for value in new.hoisted), *interpreter.state(names)]
    closed = _share_leading(interpreter, rewritten, names, [*before, *operands]) if before else None
    closed = _agree_on_varying(closed or [new.closed for new in rewritten])
    outs = _compat.bind_branches(eqn, [index, *before, *operands], closed)
    streams = rewritten[0].outputs
    states = jax.tree.structure([interpreter.handler.carry[name] for name in names])
    end = streams + rewritten[0].tree.num_leaves
    interpreter.update(names, states, outs[end:])
    return list(outs[:streams]), jax.tree.unflatten(rewritten[0].tree, outs[streams:end])


def _share_leading(
    interpreter: Interpreter, rewritten: list[Rewritten], names: Sequence[str], values: list[Any]
) -> list[Any]:
    """Give every branch the hoisted values of all branches and the carry that any of them updates.

    values: [*hoisted of each branch, *carry, *operands]; each branch returns the whole carry.
    """
    avals = [_compat.typeof(value) for value in values]
    trees = [jax.tree.structure(interpreter.handler.carry[name]) for name in names]
    tree: Any = jax.tree_util.treedef_tuple(trees)
    hoisted = sum(len(new.hoisted) for new in rewritten)
    shared, start = [], 0
    for new in rewritten:
        own = slice(start, start + len(new.hoisted))
        start = own.stop

        def flat(*args: Any, new: Rewritten = new, own: slice = own) -> list[Any]:
            end = hoisted + tree.num_leaves
            states = dict(zip(names, tree.unflatten(args[hoisted:end]), strict=True))
            mine = jax.tree.leaves([states[name] for name in new.names])
            outs = jaxpr_as_fun(new.closed)(*args[own], *mine, *args[end:])
            kept = len(outs) - new.carried
            after = jax.tree.unflatten(new.carry_tree, outs[kept:])
            states.update(zip(new.names, after, strict=True))
            return [*outs[:kept], *jax.tree.leaves([states[name] for name in names])]

        shared.append(_compat.trace_flat(flat, avals, "branch"))
    return shared


def _agree_on_varying(branches: list[Any]) -> list[Any]:
    """Make each output vary, inside ``shard_map``, along the axes along which any branch's does."""
    wanted = [
        frozenset().union(*(_compat.varying_axes(aval) for aval in avals))
        for avals in zip(*(branch.out_avals for branch in branches), strict=True)
    ]
    if not any(wanted):
        return branches

    def adjusted(branch: Any) -> Any:
        def flat(*args: Any) -> list[Any]:
            outs = jaxpr_as_fun(branch)(*args)
            return [_compat.make_varying(x, w) for x, w in zip(outs, wanted, strict=True)]

        return _compat.trace_flat(flat, branch.in_avals, "branch")

    return [adjusted(branch) for branch in branches]
