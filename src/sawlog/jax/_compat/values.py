"""Values and types of JAX: arrays, tracers, shardings, PRNG keys, tangents."""

from __future__ import annotations

from typing import Any

import jax

from sawlog.jax._compat import private


def typeof(value: Any) -> Any:
    """Return the abstract value of anything JAX accepts, with weak type and sharding."""
    return private.core.typeof(value)


def as_aval(value: Any) -> Any:
    """Return the abstract value of a shape and dtype; an abstract value unchanged."""
    if isinstance(value, private.core.AbstractValue):
        return value
    return private.core.shaped_abstractify(value)


def is_weak(value: Any) -> bool:
    """Return whether a value has the weak type of a Python scalar."""
    return bool(getattr(private.core.typeof(value), "weak_type", False))


def is_jax_value(value: Any) -> bool:
    """Return whether ``jax.jit`` accepts ``value`` as an argument to trace."""
    try:
        private.core.shaped_abstractify(value)
    except (TypeError, AssertionError):
        return False
    return True


def is_tracer(value: Any) -> bool:
    """Return whether ``value`` is a tracer."""
    return isinstance(value, private.core.Tracer)


def is_array(value: Any) -> bool:
    """Return whether a value, or a type, is an array: no reference, no type that is not JAX's."""
    aval = value if isinstance(value, private.core.AbstractValue) else private.core.typeof(value)
    return isinstance(aval, private.core.ShapedArray)


def is_reference(value: Any) -> bool:
    """Return whether a value, or a type, is a reference to an array that can be changed."""
    aval: Any = (
        value if isinstance(value, private.core.AbstractValue) else private.core.typeof(value)
    )
    return isinstance(aval, jax.ref.AbstractRef)


def varying_axes(value: Any) -> frozenset[str]:
    """Return the mesh axes along which a value inside ``shard_map`` may differ."""
    aval: Any = (
        value if isinstance(value, private.core.AbstractValue) else private.core.typeof(value)
    )
    manual = getattr(aval, "mat", None)
    return frozenset(aval.vma if manual is None else manual.varying)


def make_varying(value: Any, axes: frozenset[str]) -> Any:
    """Declare that ``value`` varies along ``axes`` too."""
    missing = tuple(sorted(axes - varying_axes(value)))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def explicit_sharding(value: Any) -> Any:
    """Return the sharding in the type of an array, or in a type.

    Returns:
        None unless its mesh has explicit axes. The sharding of an array outside of all traces has
        devices; any other has an abstract mesh.
    """
    if isinstance(value, private.core.AbstractValue):
        aval: Any = value
    elif isinstance(value, jax.Array):
        aval = private.core.typeof(value)
    else:
        return None
    sharding: Any = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    if mesh is None or jax.sharding.AxisType.Explicit not in mesh.axis_types:
        return None
    if isinstance(value, jax.Array) and not is_tracer(value):
        mesh = getattr(value.sharding, "mesh", mesh)
    return jax.sharding.NamedSharding(mesh, sharding.spec)


def unreduced_axes(value: Any) -> tuple[str, ...]:
    """Return the mesh axes over which the parts of an array have not been added up yet."""
    sharding = explicit_sharding(value)
    return () if sharding is None else tuple(sorted(map(str, sharding.spec.unreduced)))


def on_device(value: Any) -> Any:
    """Return a traced array in the memory of the device; it may be in that of the host."""
    space = getattr(private.core.typeof(value), "memory_space", None)
    if space != jax.memory.Space.Host:
        return value
    return jax.device_put(value, jax.memory.Space.Device)


def mesh_of(value: Any) -> Any:
    """Return the mesh in the type of a traced array; None for other values, or without a mesh."""
    return mesh_of_type(private.core.typeof(value)) if is_tracer(value) else None


def mesh_of_type(kind: Any) -> Any:
    """Return the mesh in the type of an array, or of a traced array; None without one."""
    kind = private.core.typeof(kind) if is_tracer(kind) else kind
    sharding: Any = getattr(kind, "sharding", None)
    mesh = sharding.mesh if isinstance(kind, private.core.AbstractValue) and sharding else None
    return None if mesh is None or mesh.empty else mesh


def is_abstract(sharding: Any) -> bool:
    """Return whether a sharding has an abstract mesh, without devices."""
    return isinstance(sharding.mesh, jax.sharding.AbstractMesh)


def key_kind(value: Any) -> Any:
    """Return the implementation of the PRNG keys in an array or dtype; None for other dtypes."""
    dtype = getattr(value, "dtype", value)
    return dtype._impl if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) else None


def lane_aval(value: Any, dim: int) -> Any:
    """Return the abstract value of one lane of a mapped vector."""
    aval = private.core.typeof(value)
    return private.core.mapped_aval(aval.shape[dim], dim, aval)


def is_zero(tangent: Any) -> bool:
    """Return whether a tangent or cotangent is a symbolic zero."""
    return type(tangent) is private.ad_util.Zero


def instantiate_zero(tangent: Any) -> Any:
    """Return a tangent as an array."""
    return private.ad.instantiate_zeros(tangent)


def has_tangent(value: Any) -> bool:
    """Return whether a gradient can flow through a value."""
    return bool(private.core.typeof(value).to_tangent_aval().dtype != jax.dtypes.float0)
