"""Square roots whose derivative at 0 is 0, for optimizers that divide by one.

Adam divides by ``sqrt(v)``. A parameter that has never received a gradient, such as the weight of a
pixel that is always black, has ``v = 0``, where the derivative of the root is infinite. The chain
rule multiplies it by 0, which is NaN. The product is 0 in truth: along any direction in which
``v`` does not grow, the root does not change, and where it grows, Adam's numerator is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.jax._compat import bind_equation, branches_of, inner_jaxpr, subjaxprs

_INLINED = ("jit", "pjit", "closed_call", "core_call", "eval_jaxpr")


@jax.custom_jvp
def safe_sqrt(x: Any) -> Any:
    """Return the square root; its derivative at 0 is 0."""
    return jnp.sqrt(x)


@safe_sqrt.defjvp
def _safe_sqrt_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    root = safe_sqrt(primals[0])
    slope = jnp.where(root > 0, 0.5 / jnp.where(root > 0, root, 1), 0).astype(root.dtype)
    return root, tangents[0] * slope


def with_safe_roots(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with :func:`safe_sqrt` for each square root outside of its loops.

    Square roots in the branches of a ``cond`` are replaced too: accumulation over several steps, as
    in ``optax.MultiSteps``, calls the optimizer in one.
    """

    def wrapped(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        if not _has_root(closed.jaxpr):
            return function(*args)
        outs = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outs)

    return wrapped


def _has_root(jaxpr: Any) -> bool:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "sqrt":
            return True
        if eqn.primitive.name in (*_INLINED, "cond") and _inner_root(eqn):
            return True
    return False


def _inner_root(eqn: Any) -> bool:
    return any(_has_root(_open(each)) for each in _inner(eqn))


def _inner(eqn: Any) -> list[Any]:
    return subjaxprs(eqn.params)


def _open(jaxpr: Any) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)


def _branch(program: Any) -> Callable[..., list[Any]]:
    def branch(*args: Any) -> list[Any]:
        return _evaluate(program.jaxpr, program.consts, args)

    return branch


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """Evaluate a program equation by equation in the active trace."""
    values = dict(zip(jaxpr.constvars, consts, strict=True))
    values |= dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == "sqrt":
            outs = [safe_sqrt(*inputs)]
        elif eqn.primitive.name == "cond" and _inner_root(eqn):
            branches = [_branch(each) for each in branches_of(eqn)]
            outs = jax.lax.switch(inputs[0], branches, *inputs[1:])
        elif eqn.primitive.name in _INLINED and _inner_root(eqn):
            program = inner_jaxpr(eqn)
            outs = _evaluate(_open(program), getattr(program, "consts", ()), inputs)
        else:
            outs = bind_equation(eqn, inputs)
        values.update(zip(eqn.outvars, outs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]
