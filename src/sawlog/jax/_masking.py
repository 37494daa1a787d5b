"""``vmap`` of ``cond`` and ``while_loop``: only the lanes that ran count as logged.

When the predicate is mapped, JAX runs both branches, or the body for lanes that are done, and
selects; a log would be seen for lanes that never came there. So the batching rules of both are
wrapped: where there is a log inside, it gets a mask that says whether this lane is really there.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun
from jax.extend.core.primitives import cond_p, while_p

from sawlog.jax import _compat
from sawlog.jax._interpreter import Drop, Interpreter
from sawlog.jax._primitive import SITE_PRIMITIVES, has_site_effect
from sawlog.jax._site import Site
from sawlog.jax._stream import Streams


class Mask:
    """The handler that adds a condition to every log."""

    collects = False
    primitives = SITE_PRIMITIVES

    def __init__(self, ran: Any, branch: tuple[tuple[int, int], ...] = ()) -> None:
        self._ran = ran
        self._branch = branch

    def wants(self, site: Site) -> bool:
        """Every log."""
        del site
        return True

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Bind the log again, true only where the lane is there.

        The condition has the axes of the ``vmap``s around the branch or loop, which lead; those of
        a ``vmap`` inside follow.
        """
        ran = self._ran.reshape(self._ran.shape + (1,) * (site.batch - self._ran.ndim))
        ran = jnp.broadcast_to(ran, operands[0].shape[: site.batch])
        if site.masked:
            *operands, mask = operands
            ran = ran & mask
        branches = site.branches + self._branch
        masked = dataclasses.replace(site, masked=True, branches=branches)
        primitive.bind(*operands, ran, site=masked, **params)
        return ()


def _run_masked(inner: Any, args: Sequence[Any], mask: Mask) -> list[Any]:
    return Interpreter(mask).run(inner.jaxpr, inner.consts, args)[0]


_conds = itertools.count()


def _batch_cond(rule: Callable[..., Any]) -> Callable[..., Any]:
    def masked(branch: Any, cond: int, position: int, index_aval: Any) -> Any:
        """The branch, with the index as one more operand."""

        def flat(*args: Any) -> list[Any]:
            *operands, index = args
            return _run_masked(branch, operands, Mask(index == position, ((cond, position),)))

        return _compat.trace_flat(flat, [*branch.in_avals, index_aval], "branch")

    def batch(axis_data: Any, args: Any, dims: Any, *, branches: Any, **params: Any) -> Any:
        if dims[0] is not None and any(has_site_effect(b.effects) for b in branches):
            index = _compat.unmapped_scalar(args[0], dims[0])
            cond = next(_conds)
            branches = tuple(masked(branch, cond, i, index) for i, branch in enumerate(branches))
            args, dims = (*args, args[0]), (*dims, dims[0])
        return rule(axis_data, args, dims, branches=branches, **params)

    return batch


def _batch_while(rule: Callable[..., Any]) -> Callable[..., Any]:
    def masked(cond: Any, cond_consts: int, body: Any, body_consts: int) -> Any:
        """The body, with the constants of the condition in front."""
        avals = [*cond.in_avals[:cond_consts], *body.in_avals]

        def flat(*args: Any) -> list[Any]:
            own, rest = args[:cond_consts], args[cond_consts:]
            (ran,) = jaxpr_as_fun(_without_sites(cond))(*own, *rest[body_consts:])
            return _run_masked(body, rest, Mask(ran))

        return _compat.trace_flat(flat, avals, "body")

    def batch(axis_data: Any, args: Any, dims: Any, **params: Any) -> Any:
        if has_site_effect(params["body_jaxpr"].effects):
            conds, bodies = params["cond_nconsts"], params["body_nconsts"]
            body = masked(params["cond_jaxpr"], conds, params["body_jaxpr"], bodies)
            args = [*args[:conds], *args[:conds], *args[conds:]]
            dims = [*dims[:conds], *dims[:conds], *dims[conds:]]
            params = {**params, "body_jaxpr": body, "body_nconsts": conds + bodies}
        return rule(axis_data, args, dims, **params)

    return batch


def _without_sites(closed: Any) -> Any:
    return Interpreter(Drop(SITE_PRIMITIVES)).trace(closed).closed


_compat.wrap_batching(cond_p, _batch_cond)
_compat.wrap_batching(while_p, _batch_while)
