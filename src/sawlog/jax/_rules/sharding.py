"""The rule for ``shard_map`` (and ``pmap``, which is ``jit`` of it): each shard logs separately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from sawlog.jax import _compat
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.registry import register_rule
from sawlog.jax._core.stream import Stream, Streams, over_mesh


@register_rule(_compat.shard_map_p)
def shard_map(
    interpreter: Interpreter, eqn: Any, values: Sequence[Any]
) -> tuple[list[Any], Streams]:
    """Return logs with one new axis for each manual axis of the mesh."""
    own = _compat.ShardMap.read(eqn)
    axes = own.axes
    names = interpreter.carried_by(interpreter.sites_in(eqn))
    states = [interpreter.handler.carry[name] for name in names]
    order: list[str] = []

    def body(states: Any, *args: Any) -> Any:
        local = jax.tree.map(lambda x: x.reshape(x.shape[len(axes) :]), states)
        with interpreter.carrying(names, local) as after:
            outs, found = interpreter.run(own.jaxpr, (), args)
        order[:] = [stream.info.key for stream in found]
        streams = [over_mesh(stream, len(axes)) for stream in found]
        one = tuple(stream for stream in streams if not stream.info.stacked)
        many = tuple(stream for stream in streams if stream.info.stacked)
        states = jax.tree.map(lambda x: jnp.expand_dims(x, tuple(range(len(axes)))), after())
        return tuple(outs), one, many, states

    outs, one, many, states = jax.shard_map(
        body,
        mesh=own.mesh,
        in_specs=(P(*axes), *own.in_specs),
        out_specs=(own.out_specs, P(*axes), P(None, *axes), P(*axes)),
        axis_names=set(axes),
        check_vma=own.check_vma,
    )(states, *values)
    interpreter.handler.carry.update(zip(names, states, strict=True))
    by_key: dict[str, Stream] = {stream.info.key: stream for stream in (*one, *many)}
    return list(outs), tuple(by_key[key] for key in order)
