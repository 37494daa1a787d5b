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
    """A ``scan``: ``body`` maps [consts, carry, x] to [carry, y]."""

    body: ClosedJaxpr
    consts: int
    carry: int
    length: int
    reverse: bool
    params: dict[str, Any]

    @classmethod
    def read(cls, params: dict[str, Any]) -> Scan:
        """What the parameters of an equation say."""
        if "num_consts" in params:  # before JAX 0.11
            consts, carry = params["num_consts"], params["num_carry"]
        else:
            consts, carry, _ = map(len, params["ft_in"].unpack())
        return cls(
            params["jaxpr"], consts, carry, params["length"], bool(params["reverse"]), params
        )

    def changed(self, body: ClosedJaxpr) -> dict[str, Any]:
        """The parameters of a loop like this one, with a body of the same types."""
        return {**self.params, "jaxpr": body}

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The operands: consts, carry, xs."""
        start = self.consts + self.carry
        return list(values[: self.consts]), list(values[self.consts : start]), list(values[start:])

    def bind(
        self, consts: Sequence[Any], carry: Sequence[Any], xs: Sequence[Any], body: ClosedJaxpr
    ) -> list[Any]:
        """The same loop with another body, and as many constants and carries as that one takes."""
        kept, places = _stacked_once(body, len(consts) + len(carry), len(carry))
        body = reordered(body, range(len(body.in_avals)), kept)
        params = {**self.params, "jaxpr": body}
        if "num_consts" in params:
            params |= {"num_consts": len(consts), "num_carry": len(carry)}
        else:
            ys = len(body.out_avals) - len(carry)
            params["ft_in"] = _groups(len(consts), len(carry), len(xs))
            params["ft_out"] = _groups(len(carry), ys)
        outs = [*scan_p.bind(*consts, *carry, *xs, **params), *xs]
        return [outs[place] for place in places]


def _stacked_once(body: ClosedJaxpr, xs: int, ys: int) -> tuple[list[int], list[int]]:
    """Which outputs the body of a ``scan`` need return, and where all of them are to be found.

    That is among the outputs of the shorter loop, with its inputs behind. An ``x`` that is returned
    need not be stacked again, nor need anything be stacked twice; ``jax.lax.scan`` does the same.
    ``xs`` and ``ys`` are the numbers of the first of each.
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


def _groups(*sizes: int) -> Any:
    """How JAX 0.11 and newer say which operands of a loop are what."""
    flattree = private.flattree()
    return flattree.pack(tuple(map(flattree.nones, sizes)))


def shortened_scan(eqn: JaxprEqn, length: int) -> JaxprEqn:
    """The same equation of ``scan`` for another number of steps."""
    return eqn.replace(params={**eqn.params, "length": length})


@dataclasses.dataclass(frozen=True)
class While:
    """A ``while_loop``: ``cond`` maps [cond consts, carry] to [again], ``body`` to [carry]."""

    cond: ClosedJaxpr
    body: ClosedJaxpr
    cond_consts: int
    body_consts: int
    params: dict[str, Any]

    @classmethod
    def read(cls, params: dict[str, Any]) -> While:
        """What the parameters of an equation say."""
        names = ("cond_jaxpr", "body_jaxpr", "cond_nconsts", "body_nconsts")
        cond, body, conds, bodies = (params[name] for name in names)
        return cls(cond, body, conds, bodies, params)

    @property
    def consts(self) -> int:
        """How many operands come before the carry."""
        return self.cond_consts + self.body_consts

    def split(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The operands: those of the condition, those of the body, the carry."""
        start, end = self.cond_consts, self.consts
        return list(values[:start]), list(values[start:end]), list(values[end:])

    def changed(self, **changes: Any) -> dict[str, Any]:
        """The parameters of a loop like this one, with other fields."""
        new = dataclasses.replace(self, **changes)
        return {
            **self.params,
            "cond_jaxpr": new.cond,
            "body_jaxpr": new.body,
            "cond_nconsts": new.cond_consts,
            "body_nconsts": new.body_consts,
        }
