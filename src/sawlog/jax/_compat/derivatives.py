"""Equations as they are differentiated: for some of their operands, or for one example."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sawlog.jax._compat.equations import bind_equation


def is_differentiated_jointly(eqn: JaxprEqn) -> bool:
    """Return whether JAX can only differentiate an equation for all of its operands at once.

    The derivative of ``custom_linear_solve`` fails where only what its solver holds has a tangent.
    """
    return eqn.primitive.name == "custom_linear_solve"


def bind_differentiably(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Bind an equation in the active trace, such that each operand alone can be differentiated.

    The derivative of ``pad`` fails where only the value that is padded with has a tangent.
    """
    if eqn.primitive.name != "pad":
        return bind_equation(eqn, values)
    operand, value = values
    config = eqn.params["padding_config"]
    inside = lax.pad(lax.full_like(operand, True, bool), False, config)
    return [jnp.where(inside, lax.pad(operand, jnp.zeros_like(value), config), value)]


def for_one_example(eqn: JaxprEqn, dims: Collection[int]) -> JaxprEqn:
    """Return an equation whose output is not sharded along the dimensions of the examples.

    On a mesh with explicit axes, a product says how its output is sharded.
    """
    sharding = eqn.params.get("out_sharding")
    if not isinstance(sharding, NamedSharding):
        return eqn
    spec = [None if dim in dims else names for dim, names in enumerate(sharding.spec)]
    return eqn.replace(
        params={**eqn.params, "out_sharding": NamedSharding(sharding.mesh, P(*spec))}
    )
