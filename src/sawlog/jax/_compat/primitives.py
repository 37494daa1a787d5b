"""Rules for primitives of sawlog: differentiation, batching, lowering, binding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from sawlog.jax._compat import private
from sawlog.jax._compat.private import ClosedJaxpr, Primitive
from sawlog.jax._compat.values import explicit_sharding

custom_vmap_p = private.custom_batching.custom_vmap_p
remat_opt_p = private.custom_derivatives.remat_opt_p
composite_p = private.lax.composite_p
reduce_p = private.lax.reduce_p
shard_map_p = private.shard_map.shard_map_p
call_hi_primitive_p = private.call_hi_primitive_p
#: Whether linearization rules also return residuals that are pytrees.
_STRUCTURED_RESIDUALS = jax.__version_info__ >= (0, 11, 1)


def define_silent_autodiff(primitive: Primitive, bind_primal: Callable[..., Any]) -> None:
    """Differentiate a primitive without outputs: it runs once, with the primal values."""

    def jvp(primals: Any, tangents: Any, **params: Any) -> Any:
        del tangents
        return bind_primal(*primals, **params), []

    def linearize(is_vjp: Any, nonzeros: Any, *primals: Any, **params: Any) -> Any:
        del is_vjp, nonzeros
        bind_primal(*primals, **params)
        if _STRUCTURED_RESIDUALS:
            return [], [], [], None, lambda residuals, structured, *tangents: []
        return [], [], [], lambda residuals, *tangents: []

    def transpose(cotangents: Any, *args: Any, **params: Any) -> Any:
        # A transposition never computes the value of a linear unknown. Without outputs there is
        # no cotangent either: nothing to log.
        del cotangents, params
        return [None for _ in args]

    private.ad.primitive_jvps[primitive] = jvp
    private.ad.primitive_linearizations[primitive] = linearize
    private.ad.primitive_transposes[primitive] = transpose


def define_jvp(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Register the forward-mode rule of a primitive."""
    private.ad.primitive_jvps[primitive] = rule


def define_transpose(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Register the transposition rule of a linear primitive."""
    private.ad.primitive_transposes[primitive] = rule


def define_in_forward_mode(primitive: Primitive, mark: Callable[[dict], dict]) -> None:
    """Apply ``mark`` to the parameters of a primitive that is bound inside ``jax.jvp``."""
    plain = type(primitive).bind_with_trace

    def bind_with_trace(trace: Any, args: Any, avals: Any, params: Any) -> Any:
        if isinstance(trace, private.ad.JVPTrace):
            params = mark(dict(params))
        return plain(primitive, trace, args, avals, params)

    primitive.def_bind_with_trace(bind_with_trace)


def define_batching(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Register ``rule(add_axis, values, dims, **params)`` to batch a primitive without outputs.

    ``add_axis(value, dim)`` moves the mapped axis to the front, or broadcasts if ``dim`` is None.
    The rule also runs if no operand is mapped.
    """

    def no_outputs(*args: Any, **params: Any) -> Any:
        rule(*args, **params)
        return [], []

    define_batching_with_outputs(primitive, no_outputs)


def define_batching_with_outputs(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Register ``rule(add_axis, values, dims, **params) -> (outputs, dims)`` for batching."""

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        return rule(axis_adder(axis_data, values, dims), values, dims, **params)

    private.batching.fancy_primitive_batchers[primitive] = batch


def axis_adder(axis_data: Any, values: Any, dims: Any) -> Callable[[Any, int | None], Any]:
    """Return ``add_axis(value, dim)`` for the operands of one equation that is batched.

    It moves the mapped axis to the front, or broadcasts if ``dim`` is None. The new axis is sharded
    like that of the mapped operands.
    """
    axis = axis_data.explicit_mesh_axis
    mapped = [x for x, dim in zip(values, dims, strict=True) if dim is not None]
    there = next((s for s in map(explicit_sharding, mapped) if s is not None), None)

    def add_axis(value: Any, dim: int | None) -> Any:
        if dim is None and there is not None:
            value = _on_mesh_of(value, there)
        known = dim is not None or explicit_sharding(value) is not None
        return private.batching.bdim_at_front(
            value, dim, axis_data.size, mesh_axis=axis if known else None
        )

    return add_axis


def batch_program(closed: ClosedJaxpr, axis_data: Any) -> ClosedJaxpr:
    """Return the program of all lanes, with the mapped axis first in every input and output."""
    inputs, outputs = [True] * len(closed.in_avals), [True] * len(closed.out_avals)
    return private.batching.batch_jaxpr(closed, axis_data, inputs, outputs)[0]


def _on_mesh_of(value: Any, sharding: Any) -> Any:
    """Move a value without a mesh in its type to the mesh of ``sharding``."""
    if not private.core.typeof(value).sharding.mesh.empty:
        return value
    mesh = sharding.mesh.abstract_mesh
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.sharding.reshard(value, jax.sharding.NamedSharding(mesh, jax.P()))


def define_lowering(primitive: Primitive, rule: Callable[..., Any], cacheable: bool = True) -> None:
    """Register how a primitive is lowered to StableHLO, on every platform."""
    private.mlir.register_lowering(primitive, rule, cacheable=cacheable)


def replace_where_bound(
    primitive: Primitive, instead: Callable[[Sequence[Any], dict[str, Any], bool], Any]
) -> None:
    """Compute the outputs of a primitive by ``instead(operands, params, differentiated)``.

    It runs wherever the primitive is bound, before the active trace processes it; if it returns
    None the primitive is bound unchanged. ``differentiated`` says whether that trace
    differentiates.
    """
    plain = primitive.bind_with_trace

    def bind_with_trace(trace: Any, args: Any, avals: Any, params: Any) -> Any:
        with private.core.set_current_trace(trace):
            outs = instead(
                args, params, isinstance(trace, (private.ad.JVPTrace, private.ad.LinearizeTrace))
            )
        return plain(trace, args, avals, params) if outs is None else outs

    primitive.def_bind_with_trace(bind_with_trace)


def hi_primitive_function(params: dict[str, Any]) -> Callable[..., list[Any]]:
    """Return the operation of a ``call_hi_primitive`` as a function of flat operands."""
    operation = params["_prim"]

    def flat(*operands: Any) -> list[Any]:
        outs = operation.expand(*jax.tree.unflatten(operation.in_tree, operands))
        return jax.tree.leaves(outs)

    return flat


def hi_primitive_types(params: dict[str, Any]) -> list[Any]:
    """Return the types of the outputs of a ``call_hi_primitive``; none for other primitives."""
    return list(params["_prim"].out_avals_flat) if "_prim" in params else []


def differentiates_backwards(params: dict[str, Any]) -> bool:
    """Return whether a ``call_hi_primitive`` has a rule of its own for reverse mode.

    Otherwise it has only a rule for forward mode, from which JAX may derive the other one.
    """
    for kind in type(params["_prim"]).__mro__:
        rule = vars(kind).get("vjp_fwd")
        if rule is not None:
            return kind is not private.hi_primitive and not _is_derived(rule)
    return False


def _is_derived(rule: Any) -> bool:
    return getattr(rule, "__name__", "").startswith("_vjp_fwd_from")
