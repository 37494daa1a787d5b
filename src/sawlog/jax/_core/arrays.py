"""Create and combine arrays with the dtype and sharding of other arrays; PRNG keys included.

On a mesh with explicit axes the type of an array says how each of its axes is sharded, and JAX
combines only arrays whose shardings agree. So the arrays that sawlog adds to a program (blank
entries, masks, states) are created like the values that they accompany. Without such a mesh the
sharding of a :data:`Type` is None.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from sawlog.jax import _compat

Type = jax.ShapeDtypeStruct
"""A shape, a dtype and, on a mesh with explicit axes, a sharding."""


def is_plain(array: Any) -> bool:
    """Return whether numpy supports the dtype of an array."""
    return not jnp.issubdtype(jnp.result_type(array), jax.dtypes.extended)


def host_array(array: Any) -> Any:
    """Return an array as one of numpy, or unchanged if numpy does not support its dtype."""
    return np.asarray(array) if is_plain(array) else array


# -- types -----------------------------------------------------------------------------------------


def type_of(array: Any) -> Type:
    """Return the type of an array or a Python number; a type unchanged."""
    if isinstance(array, Type):
        return array
    if not hasattr(array, "shape"):  # A Python number, which JAX keeps as it is until it is used.
        array = jax.typeof(array)
    return Type(array.shape, array.dtype, sharding=_compat.explicit_sharding(array))


def inner(array: Any, axes: int) -> Type:
    """Return the type without the first ``axes`` axes."""
    kind = type_of(array)
    return _typed(kind.shape[axes:], kind.dtype, kind.sharding, _spec(kind)[axes:])


def leading(array: Any, axes: int, dtype: Any = bool) -> Type:
    """Return the type with only the first ``axes`` axes, and another dtype."""
    kind = type_of(array)
    return _typed(kind.shape[:axes], dtype, kind.sharding, _spec(kind)[:axes])


def along(array: Any, axis: int, dtype: Any = bool) -> Type:
    """Return the type with only this axis, and another dtype."""
    kind = type_of(array)
    return _typed(kind.shape[axis : axis + 1], dtype, kind.sharding, _spec(kind)[axis : axis + 1])


def under(lead: Any, array: Any) -> Type:
    """Return the type of an array with the axes of ``lead`` in front of its own."""
    outer, kind = type_of(lead), type_of(array)
    sharding = kind.sharding or outer.sharding
    return _typed(outer.shape + kind.shape, kind.dtype, sharding, _spec(outer) + _spec(kind))


def under_first(lead: Any, array: Any) -> Type:
    """Return the type as :func:`under` does; ``lead`` keeps the axes of a mesh that both use."""
    outer, kind = type_of(lead), type_of(array)
    taken = {name for one in _spec(outer) for name in _names(one)}
    spec = [None if taken & set(_names(one)) else one for one in _spec(kind)]
    return under(outer, _typed(kind.shape, kind.dtype, kind.sharding or outer.sharding, spec))


def is_of_auto_axes(kind: Any) -> bool:
    """Return whether a value is in a part of the program where all axes of the mesh are automatic.

    There (``jax.sharding.auto_axes``) types have a mesh, and shardings are unknown.
    """
    mesh = _compat.mesh_of_type(kind)
    return mesh is not None and jax.sharding.AxisType.Explicit not in mesh.axis_types


def rows(count: int, array: Any) -> Type:
    """Return the type of ``count`` such arrays, stacked along a new, unsharded first axis."""
    return under(Type((count,), bool), array)


def resized(array: Any, axis: int, size: int) -> Type:
    """Return the type with another size along an axis, which becomes unsharded."""
    kind = type_of(array)
    shape, spec = list(kind.shape), list(_spec(kind))
    shape[axis], spec[axis] = size, None
    return _typed(shape, kind.dtype, kind.sharding, spec)


def with_dtype(array: Any, dtype: Any) -> Type:
    """Return the type with another dtype."""
    kind = type_of(array)
    return _typed(kind.shape, dtype, kind.sharding, _spec(kind))


def on_one_mesh(types: Sequence[Type]) -> list[Type]:
    """Return the types, all on the mesh of the first type that has one."""
    mesh = next((kind.sharding for kind in types if kind.sharding is not None), None)
    return [_typed(t.shape, t.dtype, t.sharding or mesh, _spec(t)) for t in types]


def beside(tree: Any, array: Any, axes: int) -> Type:
    """Return the type without the first ``axes`` axes, on the mesh of the arrays in ``tree``."""
    kind = inner(array, axes)
    found = (type_of(leaf).sharding for leaf in jax.tree.leaves(tree))
    here = next((sharding for sharding in found if sharding is not None), None)
    if here is None:
        return Type(kind.shape, kind.dtype)
    types = dict(zip(here.mesh.axis_names, here.mesh.axis_types, strict=True))
    explicit = {name for name, of in types.items() if of == jax.sharding.AxisType.Explicit}
    spec = [one if explicit.issuperset(_names(one)) else None for one in _spec(kind)]
    return _typed(kind.shape, kind.dtype, here, spec)


def common_type(arrays: Sequence[Any]) -> Type:
    """Return a type to which arrays of one shape and dtype can be resharded without gathering.

    An axis is sharded if any of them has it sharded; the first of different shardings counts.
    """
    types = [type_of(array) for array in arrays]
    sharding = next((kind.sharding for kind in types if kind.sharding is not None), None)
    spec: list[Any] = []
    for names in zip(*map(_spec, types), strict=True):
        taken = {name for one in spec for name in _names(one)}
        free = (name for name in names if name and not taken & set(_names(name)))
        spec.append(next(free, None))
    return _typed(types[0].shape, types[0].dtype, sharding, spec)


def _typed(shape: Sequence[int], dtype: Any, like: Any, spec: Sequence[Any]) -> Type:
    sharding = None if like is None else NamedSharding(like.mesh, P(*spec))
    return Type(tuple(shape), dtype, sharding=sharding)


def _spec(kind: Type) -> tuple[Any, ...]:
    """Return the mesh axes of every axis: a name, a tuple of names, or None."""
    names = () if kind.sharding is None else tuple(kind.sharding.spec)
    return names + (None,) * (len(kind.shape) - len(names))


def _names(one: Any) -> tuple[str, ...]:
    return () if one is None else one if isinstance(one, tuple) else (one,)


def is_sharded_beside(array: Any, axis: int | None) -> bool:
    """Return whether any axis but this one is sharded."""
    spec = _spec(type_of(array))
    return any(name is not None for i, name in enumerate(spec) if i != axis)


# -- arrays ----------------------------------------------------------------------------------------


def zeros(like: Any) -> Any:
    """Return zeros of this type, or PRNG keys whose bits are zero."""
    like = type_of(like)
    kind = _compat.key_kind(like.dtype)
    if kind is None:
        return _full(like, 0)
    data = jax.eval_shape(jax.random.key_data, Type(like.shape, like.dtype))
    sharded = _typed(data.shape, data.dtype, like.sharding, _spec(like))
    return jax.random.wrap_key_data(_full(sharded, 0), impl=kind)


def ones(like: Any) -> Any:
    """Return ones of this type; True for booleans."""
    return _full(type_of(like), 1)


def _full(like: Type, value: int) -> Any:
    if like.sharding is None:
        return jnp.full(like.shape, value, like.dtype)
    if not _compat.not_tracing():
        with _on_mesh(like):
            return jnp.full(like.shape, value, like.dtype, out_sharding=_abstract(like))
    concrete = None if _compat.is_abstract(like.sharding) else like.sharding
    return jnp.full(like.shape, value, like.dtype, device=concrete)


def broadcast(array: Any, like: Any, first: int = 0) -> Any:
    """Broadcast an array to the shape of a type; its axes become those from ``first`` on."""
    like = type_of(like)
    axes = tuple(range(first, first + array.ndim))
    if array.shape == like.shape and not first:
        return reshard(array, like)
    if like.sharding is None:
        return lax.broadcast_in_dim(array, like.shape, axes)
    spec = _spec(like)[first : first + array.ndim]
    array = reshard(array, _typed(array.shape, array.dtype, like.sharding, spec))
    with _on_mesh(like):
        return lax.broadcast_in_dim(array, like.shape, axes, out_sharding=_abstract(like))


def reshard(array: Any, like: Any) -> Any:
    """Return ``array`` with the sharding of this type; unchanged if the type has no sharding."""
    like = type_of(like)
    if like.sharding is None:
        return array
    now = _compat.explicit_sharding(array)
    if now is not None and _spec(type_of(array)) == _spec(like) and _same_mesh(now, like.sharding):
        return array
    if _compat.not_tracing():
        return jax.device_put(array, like.sharding)
    with _on_mesh(like):
        return jax.sharding.reshard(array, _abstract(like))


def unsharded(array: Any) -> Any:
    """Return an array outside of all traces that is whole on each of its devices."""
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not any(sharding.spec):
        return array
    if not array.is_fully_addressable:  # other processes have the rest
        return array
    return jax.device_put(array, NamedSharding(sharding.mesh, P()))


def on_mesh_of(like: Any, array: Any) -> Any:
    """Return an array on the mesh of a type: unchanged, or whole on every device."""
    mesh, kind = type_of(like).sharding, type_of(array)
    if mesh is None or kind.sharding is not None:
        return array
    return reshard(array, _typed(kind.shape, kind.dtype, mesh, _spec(kind)))


def on_mesh(like: Any, array: Any, spec: Any) -> Type:
    """Return a type with this sharding on the explicit mesh of another type, if it has one."""
    mesh, kind = type_of(like).sharding, type_of(array)
    return _typed(kind.shape, kind.dtype, mesh, tuple(spec)) if mesh is not None else kind


def with_spec(like: Any, array: Any, spec: Any) -> Any:
    """Return an array with this sharding, on the explicit mesh of a type; unchanged without one."""
    return reshard(array, on_mesh(like, array, spec))


def select(mask: Any, array: Any, other: Any) -> Any:
    """Return ``array`` where the mask holds, else ``other``; the mask has their first axes."""
    like = type_of(array)
    if like.sharding is None:
        return jnp.where(mask.reshape(mask.shape + (1,) * (array.ndim - mask.ndim)), array, other)
    other = reshard(other, like) if np.ndim(other) else other
    return jnp.where(broadcast(mask, like), array, other)


def concatenate(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Concatenate arrays along an axis, with their common sharding."""
    like = common_type([_without_axis(array, axis) for array in arrays])
    if like.sharding is None:
        return jnp.concatenate(arrays, axis=axis)
    spec = _spec(like)
    spec = (*spec[:axis], None, *spec[axis:])
    parts = [reshard(x, _typed(x.shape, x.dtype, like.sharding, spec)) for x in arrays]
    return jnp.concatenate(parts, axis=axis)


def _without_axis(array: Any, axis: int) -> Type:
    kind = type_of(array)
    spec = _spec(kind)
    shape = (*kind.shape[:axis], *kind.shape[axis + 1 :])
    return _typed(shape, kind.dtype, kind.sharding, (*spec[:axis], *spec[axis + 1 :]))


def take_rows(array: Any, order: Any) -> Any:
    """Return ``array[order]`` along the first axis, which is not sharded."""
    like = type_of(array)
    if like.sharding is None:
        return array[order]
    with _on_mesh(like):
        return array.at[order].get(out_sharding=_abstract(like))


def _abstract(like: Type) -> NamedSharding:
    """Return the sharding with an abstract mesh, as in types inside a traced program."""
    sharding: Any = like.sharding
    return NamedSharding(sharding.mesh.abstract_mesh, sharding.spec)


def mesh_context(tree: Any) -> Any:
    """Return a context for computing with the arrays of ``tree``, on their mesh."""
    found = (type_of(leaf) for leaf in jax.tree.leaves(tree))
    first = next((kind for kind in found if kind.sharding is not None), None)
    return contextlib.nullcontext() if first is None else _on_mesh(first)


def in_context(array: Any) -> Any:
    """Convert an array from a part of the program with other axis types to the current ones.

    In such a part (``jax.sharding.auto_axes``) the sharding of an array is unknown.
    """
    mesh, now = _compat.mesh_of(array), jax.sharding.get_abstract_mesh()
    explicit = jax.sharding.AxisType.Explicit
    if mesh is None or now.empty or mesh == now:
        return array
    if explicit not in (*mesh.axis_types, *now.axis_types):
        return array
    return jax.sharding.reshard(array, NamedSharding(now, P()))


def _on_mesh(like: Type) -> Any:
    """Return a context in which operations accept shardings on the mesh of this type."""
    mesh = like.sharding.mesh.abstract_mesh
    if not _compat.not_tracing():
        return jax.sharding.use_abstract_mesh(mesh)
    return contextlib.nullcontext()


def _same_mesh(one: Any, two: Any) -> bool:
    return bool(one.mesh.abstract_mesh == two.mesh.abstract_mesh)


def is_elsewhere(array: Any) -> bool:
    """Return whether only the devices of other processes have some parts of an array."""
    if not isinstance(array, jax.Array) or _compat.is_tracer(array):
        return False
    return not (array.is_fully_addressable or array.is_fully_replicated)
