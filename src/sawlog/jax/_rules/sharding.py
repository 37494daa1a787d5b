"""``shard_map`` (and ``pmap``, which is ``jit`` of it): each shard logs on its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from sawlog.jax import _compat
from sawlog.jax._interpreter import Interpreter
from sawlog.jax._registry import register_rule
from sawlog.jax._stream import Stream, Streams, over_mesh


@register_rule(_compat.shard_map_p)
def shard_map(walk: Interpreter, eqn: Any, values: Sequence[Any]) -> tuple[list[Any], Streams]:
    """Logs leave the shards along new axes, one for each manual axis of the mesh."""
    params = eqn.params
    manual = params["newly_manual_axes"]
    axes = tuple(name for name in params["mesh"].axis_names if name in manual)
    order: list[str] = []

    def body(*args: Any) -> tuple[tuple[Any, ...], Streams, Streams]:
        outs, found = walk.run(params["jaxpr"], (), args)
        order[:] = [stream.info.key for stream in found]
        streams = [over_mesh(stream, len(axes)) for stream in found]
        one = tuple(stream for stream in streams if not stream.info.stacked)
        many = tuple(stream for stream in streams if stream.info.stacked)
        return tuple(outs), one, many

    outs, one, many = jax.shard_map(
        body,
        mesh=params["mesh"],
        in_specs=tuple(params["in_specs"]),
        out_specs=(tuple(params["out_specs"]), P(*axes), P(None, *axes)),
        axis_names=set(axes),
        check_vma=params["check_vma"],
    )(*values)
    by_key: dict[str, Stream] = {stream.info.key: stream for stream in (*one, *many)}
    return list(outs), tuple(by_key[key] for key in order)
