"""Values and types of JAX: arrays, tracers, shardings, PRNG keys, tangents."""

from __future__ import annotations

from typing import Any

import jax

from sawlog.jax._compat import private


def typeof(value: Any) -> Any:
    """The abstract value of anything JAX accepts, weak type and sharding included."""
    return private.core.typeof(value)


def as_aval(value: Any) -> Any:
    """The abstract value of a shape and dtype; an abstract value as it is."""
    if isinstance(value, private.core.AbstractValue):
        return value
    return private.core.shaped_abstractify(value)


def is_weak(value: Any) -> bool:
    """Whether a value has the weak type of a Python scalar."""
    return bool(getattr(private.core.typeof(value), "weak_type", False))


def is_jax_value(value: Any) -> bool:
    """Whether ``jax.jit`` takes ``value`` as an argument that is traced."""
    try:
        private.core.shaped_abstractify(value)
    except (TypeError, AssertionError):
        return False
    return True


def is_tracer(value: Any) -> bool:
    """Whether ``value`` stands for a value that is not known yet."""
    return isinstance(value, private.core.Tracer)


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes along which a value inside ``shard_map`` may differ."""
    aval: Any = (
        value if isinstance(value, private.core.AbstractValue) else private.core.typeof(value)
    )
    manual = getattr(aval, "mat", None)
    return frozenset(aval.vma if manual is None else manual.varying)


def make_varying(value: Any, axes: frozenset[str]) -> Any:
    """``value``, declared to vary along ``axes`` too."""
    missing = tuple(sorted(axes - varying_axes(value)))
    return jax.lax.pcast(value, missing, to="varying") if missing else value


def explicit_sharding(value: Any) -> Any:
    """The sharding in the type of an array, or in a type; None unless its mesh has explicit axes.

    That of an array outside of all traces knows its devices, any other has an abstract mesh.
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


def mesh_of(value: Any) -> Any:
    """The mesh in the type of a traced array; None for any other, or where it names none."""
    mesh = private.core.typeof(value).sharding.mesh if is_tracer(value) else None
    return None if mesh is None or mesh.empty else mesh


def is_abstract(sharding: Any) -> bool:
    """Whether a sharding is one of types, which does not know its devices."""
    return isinstance(sharding.mesh, jax.sharding.AbstractMesh)


def key_kind(value: Any) -> Any:
    """Which kind of PRNG keys an array or dtype holds; None for anything else."""
    dtype = getattr(value, "dtype", value)
    return dtype._impl if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) else None


def unmapped_scalar(value: Any, dim: int) -> Any:
    """The abstract value of one lane of a mapped vector."""
    aval = private.core.typeof(value)
    return private.core.mapped_aval(aval.shape[dim], dim, aval)


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is known to be zero."""
    return type(tangent) is private.ad_util.Zero


def instantiate_zero(tangent: Any) -> Any:
    """A tangent as an array."""
    return private.ad.instantiate_zeros(tangent)


def has_tangent(value: Any) -> bool:
    """Whether a gradient can flow through a value."""
    return bool(private.core.typeof(value).to_tangent_aval().dtype != jax.dtypes.float0)
