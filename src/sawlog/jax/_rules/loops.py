"""Loops: ``scan`` returns the logs of each iteration as further stacked outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core.primitives import scan_p, while_p

from sawlog.errors import UnsupportedLoopError
from sawlog.jax import _compat
from sawlog.jax._interpreter import Interpreter
from sawlog.jax._registry import register_rule
from sawlog.jax._stream import Streams, over_loop


@register_rule(scan_p)
def scan(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """body: [consts, carry, x] -> [carry, y] becomes [consts, carry, x] -> [carry, y, logs]."""
    new = walk.rewrite(eqn.params["jaxpr"])
    params = _compat.widen_scan(eqn.params, new.closed, len(new.hoisted))
    outs, streams = new.split(eqn.primitive.bind(*new.hoisted, *values, **params))
    return outs, tuple(over_loop(s, reverse=eqn.params["reverse"]) for s in streams)


@register_rule(while_p)
def while_loop(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Nothing can be collected from a loop of unknown length; calling back from it works."""
    wanted = [site.where for site in walk.sites_in(eqn) if walk.handler.wants(site)]
    if walk.handler.collects:
        raise UnsupportedLoopError(
            f"There is a log inside the loop at {_compat.source_line(eqn)}, and how often that "
            "loop runs is not known when the program is compiled, so spool cannot make room for "
            f"its entries. The log stands at {', '.join(wanted)}. Hint: stream it with "
            "sawlog.tap, give the loop a fixed length (lax.scan, or fori_loop with static bounds), "
            "or leave the name out with argnames=."
        )
    params = eqn.params
    cond, body = walk.rewrite(params["cond_jaxpr"]), walk.rewrite(params["body_jaxpr"])
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    outs = eqn.primitive.bind(
        *cond.hoisted,
        *values[: split[0]],
        *body.hoisted,
        *values[split[0] : split[1]],
        *values[split[1] :],
        **{
            **params,
            "cond_jaxpr": cond.closed,
            "body_jaxpr": body.closed,
            "cond_nconsts": params["cond_nconsts"] + len(cond.hoisted),
            "body_nconsts": params["body_nconsts"] + len(body.hoisted),
        },
    )
    return list(outs), ()
