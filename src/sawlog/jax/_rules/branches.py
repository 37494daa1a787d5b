"""Branches: ``cond`` and ``switch``, whose branches may log different things."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import cond_p

from sawlog.jax import _compat
from sawlog.jax._interpreter import Interpreter, Rewritten
from sawlog.jax._registry import register_rule
from sawlog.jax._stream import Streams, over_branches, plan_branches


@register_rule(cond_p)
def cond(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """First ask every branch what it logs, then rebuild each to return the same streams."""
    slots = plan_branches([walk.rewrite(b).stream_types for b in eqn.params["branches"]])
    news = [
        walk.trace(branch, finish=lambda streams: over_branches(slots, streams))
        for branch in eqn.params["branches"]
    ]
    index, *operands = values
    hoisted = [value for new in news for value in new.hoisted]
    closed = _agree_on_varying(_share_hoisted(news, hoisted, operands))
    params = {**eqn.params, "branches": tuple(closed)}
    return news[0].split(eqn.primitive.bind(index, *hoisted, *operands, **params))


def _share_hoisted(news: list[Rewritten], hoisted: list[Any], operands: list[Any]) -> list[Any]:
    """Let every branch take what any of them closes over."""
    if not hoisted:
        return [new.closed for new in news]
    avals = [_compat.typeof(value) for value in (*hoisted, *operands)]
    shared, start = [], 0
    for new in news:
        own = slice(start, start + len(new.hoisted))
        start = own.stop

        def flat(*args: Any, new: Rewritten = new, own: slice = own) -> list[Any]:
            return list(jaxpr_as_fun(new.closed)(*args[own], *args[len(hoisted) :]))

        shared.append(_compat.trace_flat(flat, avals, "branch"))
    return shared


def _agree_on_varying(branches: list[Any]) -> list[Any]:
    """Inside ``shard_map`` an output of any branch varies where that of any other does."""
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
