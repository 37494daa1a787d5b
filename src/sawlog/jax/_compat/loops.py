"""Equations of loops: ``scan`` and ``while_loop``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sawlog.jax._compat import private
from sawlog.jax._compat.private import ClosedJaxpr, JaxprEqn, Literal, scan_p
from sawlog.jax._compat.tracing import reordered


@dataclasses.dataclass(frozen=True)
class Scan:
    """The parameters of a ``scan``: ``body`` maps [consts, carry, x] to [carry, y]."""

    body: ClosedJaxpr
    consts: int
    carry: int
    length: int
    reverse: bool
    params: dict[str, Any]

    @classmethod
    def read(cls, params: dict[str, Any]) -> Scan:
        """Read the parameters of an equation."""
        if "num_consts" in params:  # before JAX 0.11
            consts, carry = params["num_consts"], params["num_carry"]
        else:
            consts, carry, _ = map(len, params["ft_in"].unpack())
        return cls(
            params["jaxpr"], consts, carry, params["length"], bool(params["reverse"]), params
        )

    def changed(self, body: ClosedJaxpr) -> dict[str, Any]:
        """Return the parameters with another body of the same types."""
        return {**self.params, "jaxpr": body}

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Split the operands into consts, carry and xs."""
        start = self.consts + self.carry
        return list(values[: self.consts]), list(values[self.consts : start]), list(values[start:])

    def bind(
        self, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], body: ClosedJaxpr
    ) -> list[Any]:
        """Bind this loop with another body, which takes these constants, carry and xs."""
        kept, places = _stacked_once(body, len(consts) + len(carry), len(carry))
        body = reordered(body, range(len(body.in_avals)), kept)
        params = {**self.params, "jaxpr": body}
        if "num_consts" in params:
            params |= {"num_consts": len(consts), "num_carry": len(carry)}
        else:
            ys = len(body.out_avals) - len(carry)
            params["ft_in"] = _operand_groups(len(consts), len(carry), len(xs))
            params["ft_out"] = _operand_groups(len(carry), ys)
        outs = [*scan_p.bind(*consts, *carry, *xs, **params), *xs]
        return [outs[place] for place in places]


def _stacked_once(body: ClosedJaxpr, xs: int, ys: int) -> tuple[list[int], list[int]]:
    """Find outputs of the body of a ``scan`` that need not be stacked, as ``jax.lax.scan`` does.

    These are an ``x`` that is returned unchanged, and repetitions of another output.

    Args:
        body: The body of the loop.
        xs: The position of the first ``x`` among its inputs.
        ys: The position of the first ``y`` among its outputs.

    Returns:
        The positions of the outputs to keep, and for every output its position in
        ``[*kept outputs, *xs]``.
    """
    invars, outvars = body.jaxpr.invars, body.jaxpr.outvars
    given = {var: i for i, var in enumerate(invars[xs:])}
    kept = list(range(ys))
    first: dict[Any, int] = {}
    for i, var in enumerate(outvars[ys:], ys):
        if isinstance(var, Literal):
            kept.append(i)
        elif var not in given and var not in first:
            first[var] = len(kept)
            kept.append(i)
    places = list(range(ys))
    position = {i: place for place, i in enumerate(kept)}
    for i, var in enumerate(outvars[ys:], ys):
        if i in position:
            places.append(position[i])
        else:
            places.append(len(kept) + given[var] if var in given else first[var])
    return kept, places


def _operand_groups(*sizes: int) -> Any:
    """Group the operands of a loop, as JAX 0.11 and newer expect it."""
    flattree = private.flattree()
    return flattree.pack(tuple(map(flattree.nones, sizes)))


def scan_unroll(eqn: JaxprEqn) -> int:
    """Return how many iterations of a ``scan`` are unrolled into one."""
    return int(eqn.params["unroll"])


def shortened_scan(eqn: JaxprEqn, length: int) -> JaxprEqn:
    """Change the number of steps in an equation of ``scan``."""
    return eqn.replace(params={**eqn.params, "length": length})


@dataclasses.dataclass(frozen=True)
class While:
    """The parameters of a ``while_loop``.

    ``cond`` maps [cond consts, carry] to [again], ``body`` maps [body consts, carry] to [carry].
    """

    cond: ClosedJaxpr
    body: ClosedJaxpr
    cond_consts: int
    body_consts: int
    params: dict[str, Any]

    @classmethod
    def read(cls, params: dict[str, Any]) -> While:
        """Read the parameters of an equation."""
        names = ("cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts")
        cond, body, conds, bodies = (params[name] for name in names)
        return cls(cond, body, conds, bodies, params)

    @property
    def consts(self) -> int:
        """The number of operands in front of the carry."""
        return self.cond_consts + self.body_consts

    @property
    def lanes(self) -> tuple[int, ...]:
        """The shape of the condition: that of the lanes of ``vmap``, each with its own end."""
        return tuple(self.cond.out_avals[0].shape)

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Split the operands into consts of the condition, consts of the body, and carry."""
        start, end = self.cond_consts, self.consts
        return list(values[:start]), list(values[start:end]), list(values[end:])

    def changed(self, **changes: Any) -> dict[str, Any]:
        """Return the parameters with other values of some fields."""
        new = dataclasses.replace(self, **changes)
        return {
            **self.params,
            "cond_jaxpr": new.cond,
            "body_jaxpr": new.body,
            "cond_nconsts": new.cond_consts,
            "body_nconsts": new.body_consts,
        }
