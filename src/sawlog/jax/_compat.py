"""The one place that touches JAX's private modules, parameter names or version.

Everything else in sawlog is written against the names below. When JAX moves something, this is
the file to edit; each name says what it promises, not where JAX keeps it. All that is private is
looked for when this module is imported, so that a JAX that does not fit is refused at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import sys
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from sawlog.jax import _versions

try:
    from jax._src import ad_util as _ad_util
    from jax._src import api as _api
    from jax._src import callback as _callback
    from jax._src import core as _core
    from jax._src import custom_batching as _custom_batching
    from jax._src import custom_derivatives as _custom_derivatives
    from jax._src import dispatch as _dispatch
    from jax._src import effects as _effects
    from jax._src import linear_util as _lu
    from jax._src import shard_map as _shard_map
    from jax._src import source_info_util as _source_info
    from jax._src import xla_metadata_lib as _xla_metadata_lib
    from jax._src.interpreters import ad as _ad
    from jax._src.interpreters import batching as _batching
    from jax._src.interpreters import mlir as _mlir
    from jax._src.interpreters import partial_eval as _pe
    from jax._src.lax import lax as _lax
    from jax._src.lax.control_flow import loops as _loops
    from jax._src.named_sharding import UNSPECIFIED
    from jax.experimental import xla_metadata as _xla_metadata
    from jax.extend.core import ClosedJaxpr as ClosedJaxpr
    from jax.extend.core import Jaxpr as Jaxpr
    from jax.extend.core import JaxprEqn as JaxprEqn
    from jax.extend.core import Literal as Literal
    from jax.extend.core import Primitive as Primitive
    from jax.extend.core.primitives import closed_call_p, scan_p, while_p
except ImportError as _error:  # a module or a name is gone
    raise _versions.misfit([str(_error)]) from _error

#: What is used of each private module; ``a.b`` is an attribute of an attribute.
_USED = {
    _ad: "JVPTrace LinearizeTrace instantiate_zeros primitive_jvps primitive_linearizations "
    "primitive_transposes",
    _ad_util: "Zero",
    _api: "__file__ jacfwd",
    _batching: "batch_jaxpr bdim_at_front fancy_primitive_batchers",
    _callback: "_callback_op_sharding emit_python_callback",
    _core: "AbstractValue DebugInfo EvalTrace ShapedArray Tracer eval_context jaxpr_as_fun "
    "mapped_aval set_current_trace shaped_abstractify trace_ctx trace_state_clean typeof",
    _custom_batching: "custom_vmap_p",
    _custom_derivatives: "remat_opt_p",
    _dispatch: "prim_requires_devices_during_lowering runtime_tokens",
    _effects: "Effect control_flow_allowed_effects custom_derivatives_allowed_effects "
    "lowerable_effects ordered_effects partial_eval_kept_effects remat_allowed_effects "
    "shardable_ordered_effects",
    _lax: "composite_p reduce_p",
    _loops: "_scan_known_hoisting",
    _lu: "wrap_init",
    _mlir: "TokenSet register_lowering",
    _pe: "DynamicJaxprTrace JaxprTracer convert_constvars_jaxpr custom_partial_eval_rules "
    "partial_eval_jaxpr_custom_rules trace_to_jaxpr_dynamic tracers_to_jaxpr",
    _shard_map: "shard_map_p",
    _xla_metadata: "set_xla_metadata",
    _xla_metadata_lib: "current_xla_metadata",
    _source_info: "Scope Transform current_name_stack register_exclusion summarize user_context",
}

#: Tables in which rules of JAX's own primitives are wrapped.
_WRAPPED = (
    ("batching rule of while_loop", _batching, "fancy_primitive_batchers", while_p),
    ("forward rule of while_loop", _ad, "primitive_jvps", while_p),
    ("partial evaluation of while_loop", _pe, "custom_partial_eval_rules", while_p),
    ("partial evaluation of while_loop", _pe, "partial_eval_jaxpr_custom_rules", while_p),
    ("partial evaluation of scan", _pe, "partial_eval_jaxpr_custom_rules", scan_p),
)


def _missing() -> Iterator[str]:
    for module, names in _USED.items():
        yield from (f"{module.__name__}.{n}" for n in names.split() if not hasattr(module, n))
    for what, module, table, primitive in _WRAPPED:
        if primitive not in getattr(module, table, ()):
            yield f"the {what}"


if _absent := list(_missing()):
    raise _versions.misfit(_absent)

Effect = _effects.Effect
JVPTrace = _ad.JVPTrace

#: Whether rules of linearization also return residuals that are pytrees.
_STRUCTURED_RESIDUALS = jax.__version_info__ >= (0, 11, 1)

custom_vmap_p = _custom_batching.custom_vmap_p
remat_opt_p = _custom_derivatives.remat_opt_p
composite_p = _lax.composite_p
reduce_p = _lax.reduce_p
shard_map_p = _shard_map.shard_map_p


# -- values and traces ---------------------------------------------------------------------------


def typeof(value: Any) -> Any:
    """The abstract value of anything JAX accepts, weak type and sharding included."""
    return _core.typeof(value)


def as_aval(value: Any) -> Any:
    """The abstract value of a shape and dtype; an abstract value as it is."""
    if isinstance(value, _core.AbstractValue):
        return value
    return _core.shaped_abstractify(value)


def is_weak(value: Any) -> bool:
    """Whether a value has the weak type of a Python scalar."""
    return bool(getattr(_core.typeof(value), "weak_type", False))


def varying_axes(value: Any) -> frozenset[str]:
    """The mesh axes along which a value inside ``shard_map`` may differ."""
    aval: Any = value if isinstance(value, _core.AbstractValue) else _core.typeof(value)
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
    if isinstance(value, _core.AbstractValue):
        aval: Any = value
    elif isinstance(value, jax.Array):
        aval = _core.typeof(value)
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
    mesh = _core.typeof(value).sharding.mesh if is_tracer(value) else None
    return None if mesh is None or mesh.empty else mesh


def is_abstract(sharding: Any) -> bool:
    """Whether a sharding is one of types, which does not know its devices."""
    return isinstance(sharding.mesh, jax.sharding.AbstractMesh)


def key_kind(value: Any) -> Any:
    """Which kind of PRNG keys an array or dtype holds; None for anything else."""
    dtype = getattr(value, "dtype", value)
    return dtype._impl if jax.numpy.issubdtype(dtype, jax.dtypes.prng_key) else None


def is_tracer(value: Any) -> bool:
    """Whether ``value`` stands for a value that is not known yet."""
    return isinstance(value, _core.Tracer)


def inside_jacfwd() -> bool:
    """Whether ``jax.jacfwd`` is at work; its ``vmap`` looks like any other from inside."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        names = (*code.co_varnames, *code.co_cellvars)  # jacrev has a jacfun too, without pushfwd
        if code.co_name == "jacfun" and "pushfwd" in names and code.co_filename == _api.__file__:
            return True
        frame = frame.f_back
    return False


#: Functions of ``jax.tree`` and their kin: whoever calls them is the one who flattens.
_FLATTENING = (
    "functools",
    "jax._src.flatten_util",
    "jax._src.flattree",
    "jax._src.traceback_util",
    "jax._src.tree",
)
#: Functions of JAX that flatten what they are given, and nothing that they made themselves.
_TAKE_ARGUMENTS = {
    "jax._src.api": """block_until_ready copy_to_host_async device_get device_put eval_shape grad_f
        value_and_grad_f vjp vmap_f""",
    "jax._src.pjit": """_infer_params cache_miss eval_shape jit_eval_shape jit_lower jit_trace lower
        trace""",
    "jax._src.api_util": "debug_info _non_static_arg_names <genexpr>",
    "jax._src.ad_checkpoint": "fun_remat",
    "jax._src.lax.control_flow.loops": "fori_loop map scan while_loop",
    "jax._src.lax.control_flow.conditionals": "cond switch",
}
_TAKES_ARGUMENTS = {
    (module, name) for module, names in _TAKE_ARGUMENTS.items() for name in names.split()
}


def flattened_for(own_calls: frozenset[str]) -> bool:
    """Whether a pytree is flattened because somebody outside of JAX gave it to a function.

    To be called by the function that flattens a pytree, which may have been called by
    ``_flatten_with_keys``. JAX also flattens what it has just made,
    and counts on finding the same leaves; that is not meant. Nor is what sawlog does itself, but
    for calls of compiled functions and for its functions named ``own_calls``.
    """
    frame: Any = sys._getframe(2)
    if frame.f_code.co_name == "_flatten_with_keys":
        frame = frame.f_back
    direct, maps = True, False
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module != "functools" and not module.startswith(("jax.", "jaxlib.")):
            return direct or not module.startswith("sawlog.") or name in own_calls
        if module.startswith(_FLATTENING):
            maps = maps or name == "tree_map"
        elif (module, name) not in _TAKES_ARGUMENTS or (name == "scan" and maps):
            return False  # a scan without jit maps over the outputs of its body, to stack them
        direct = False
        frame = frame.f_back
    return False


def not_tracing() -> bool:
    """Whether no transformation of JAX is under way in this thread."""
    return bool(_core.trace_state_clean())


def evaluating() -> Any:
    """A context in which operations on known arrays are run, whatever is traced around it."""
    return _core.eval_context()


#: What this thread does with operations is ``trace_context.trace``; an ``Evaluates`` runs them.
trace_context: Any = _core.trace_ctx
Evaluates: Any = _core.EvalTrace


def under_jit() -> bool:
    """Whether a program is traced to be compiled, however deep below other transformations."""
    trace = trace_context.trace
    if type(trace) is Evaluates:
        return False
    while trace is not None and not isinstance(trace, _pe.DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)
    return trace is not None


#: What JAX traces functions for that may return whatever they like.
_RETURN_ANYTHING = frozenset({"jit", "pjit", "checkpoint / remat", "sawlog"})


def inside_inner_function() -> bool:
    """Whether a branch, the body of a loop or the like is traced, however deep; not only ``jit``.

    Such a function must return what others return, or what it was given.
    """
    trace: Any = _core.trace_ctx.trace
    while trace is not None:
        frame = getattr(trace, "frame", None)
        if frame is not None and frame.debug_info.traced_for not in _RETURN_ANYTHING:
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def unmapped_scalar(value: Any, dim: int) -> Any:
    """The abstract value of one lane of a mapped vector."""
    aval = _core.typeof(value)
    return _core.mapped_aval(aval.shape[dim], dim, aval)


def trace_flat(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], name: str) -> ClosedJaxpr:
    """Trace ``fun``, which takes and returns flat lists, at exactly these abstract values."""
    debug = _core.DebugInfo(
        traced_for="sawlog", func_src_info=name, arg_names=None, result_paths=None
    )
    wrapped = _lu.wrap_init(lambda *args: list(fun(*args)), debug_info=debug)
    jaxpr, _, consts = _pe.trace_to_jaxpr_dynamic(wrapped, list(avals))
    return ClosedJaxpr(jaxpr, consts)


def hoist_consts(closed: ClosedJaxpr) -> tuple[ClosedJaxpr, list[Any]]:
    """Turn what ``closed`` closes over into leading inputs, when any of it is a tracer."""
    if not any(is_tracer(const) for const in closed.consts):
        return closed, []
    return ClosedJaxpr(_pe.convert_constvars_jaxpr(closed.jaxpr), ()), list(closed.consts)


def _inline_consts(closed: ClosedJaxpr) -> tuple[Jaxpr, list[Any]]:
    """An open jaxpr that takes its constants as leading inputs, and those constants."""
    if not closed.consts:
        return closed.jaxpr, []
    return _pe.convert_constvars_jaxpr(closed.jaxpr), list(closed.consts)


def reordered(closed: ClosedJaxpr, inputs: Sequence[int], outputs: Sequence[int]) -> ClosedJaxpr:
    """The same program with its inputs and outputs in another order."""
    jaxpr = closed.jaxpr
    return ClosedJaxpr(
        jaxpr.replace(
            invars=[jaxpr.invars[i] for i in inputs],
            outvars=[jaxpr.outvars[i] for i in outputs],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        closed.consts,
    )


def bind_equation(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Run one equation as it stands, in the present trace."""
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


def equation_scope(eqn: JaxprEqn) -> Any:
    """The name stack, source position and settings an equation was traced under."""
    return _Scope(eqn)


class _Scope:
    __slots__ = ("_context", "_where")

    def __init__(self, eqn: JaxprEqn) -> None:
        names = _source_info.current_name_stack() + eqn.source_info.name_stack
        self._where = _source_info.user_context(eqn.source_info.traceback, name_stack=names)
        self._context = eqn.ctx.manager

    def __enter__(self) -> None:
        self._where.__enter__()
        self._context.__enter__()

    def __exit__(self, *exc: Any) -> Any:
        self._context.__exit__(*exc)
        return self._where.__exit__(*exc)


def source_line(eqn: JaxprEqn) -> str:
    """``file:line (function)`` of the user's code that made this equation."""
    return str(_source_info.summarize(eqn.source_info)) or "an unknown line"


def scopes(eqn: JaxprEqn) -> list[str]:
    """The names of the scopes an equation was traced in, outermost first."""
    stack = eqn.source_info.name_stack.stack
    return [item.name for item in stack if isinstance(item, _source_info.Scope)]


def transforms(eqn: JaxprEqn) -> list[str]:
    """The names of the transformations an equation comes from: ``jvp``, ``transpose``, ..."""
    stack = eqn.source_info.name_stack.stack
    return [item.name for item in stack if isinstance(item, _source_info.Transform)]


def exclude_from_tracebacks(path: str) -> None:
    """Keep files below ``path`` out of what JAX takes for the user's code."""
    _source_info.register_exclusion(path)


# -- primitives and effects ----------------------------------------------------------------------


def register_effect(effect_type: type, *, ordered: bool) -> None:
    """Let an effect pass through lowering, control flow, remat and custom derivatives."""
    for allowed in (
        _effects.lowerable_effects,
        _effects.control_flow_allowed_effects,
        _effects.remat_allowed_effects,
        _effects.custom_derivatives_allowed_effects,
        _effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect_type)
    if ordered:
        _effects.ordered_effects.add_type(effect_type)
        _effects.shardable_ordered_effects.add_type(effect_type)


def define_silent_autodiff(primitive: Primitive, bind_primal: Callable[..., Any]) -> None:
    """Differentiate a primitive without outputs: it runs once, on the primal side."""

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
        # A value that only exists as a linear unknown is never computed by a transposition,
        # so there is nothing to see: no value, no cotangent.
        del cotangents, params
        return [None for _ in args]

    _ad.primitive_jvps[primitive] = jvp
    _ad.primitive_linearizations[primitive] = linearize
    _ad.primitive_transposes[primitive] = transpose


def define_batching(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Batch a primitive without outputs, ``rule(add_axis, mapped, values, params)``.

    ``add_axis(value, dim)`` puts the mapped axis in front, broadcasting when ``dim`` is None.
    The rule runs also when no operand is mapped.
    """

    def no_outputs(*args: Any, **params: Any) -> Any:
        rule(*args, **params)
        return [], []

    define_batching_with_outputs(primitive, no_outputs)


def define_batching_with_outputs(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Batch a primitive with outputs, ``rule(add_axis, values, dims, **params)``."""

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        return rule(axis_adder(axis_data, values, dims), values, dims, **params)

    _batching.fancy_primitive_batchers[primitive] = batch


def axis_adder(axis_data: Any, values: Any, dims: Any) -> Callable[[Any, int | None], Any]:
    """``add_axis(value, dim)`` for the operands of one equation that is batched.

    It puts the mapped axis in front, broadcasting when ``dim`` is None, and sharded as that of the
    operands that are mapped.
    """
    axis = axis_data.explicit_mesh_axis
    mapped = [x for x, dim in zip(values, dims, strict=True) if dim is not None]
    there = next((s for s in map(explicit_sharding, mapped) if s is not None), None)

    def add_axis(value: Any, dim: int | None) -> Any:
        if dim is None and there is not None:
            value = _on_mesh_of(value, there)
        known = dim is not None or explicit_sharding(value) is not None
        return _batching.bdim_at_front(
            value, dim, axis_data.size, mesh_axis=axis if known else None
        )

    return add_axis


def batch_program(closed: ClosedJaxpr, axis_data: Any) -> ClosedJaxpr:
    """The program that all lanes run, with the mapped axis in front of every input and output."""
    inputs, outputs = [True] * len(closed.in_avals), [True] * len(closed.out_avals)
    return _batching.batch_jaxpr(closed, axis_data, inputs, outputs)[0]


def _on_mesh_of(value: Any, sharding: Any) -> Any:
    """A value whose type names no mesh, on the mesh of ``sharding``; any other as it is."""
    if not _core.typeof(value).sharding.mesh.empty:
        return value
    mesh = sharding.mesh.abstract_mesh
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.sharding.reshard(value, jax.sharding.NamedSharding(mesh, jax.P()))


def define_jvp(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Differentiate a primitive forwards."""
    _ad.primitive_jvps[primitive] = rule


def define_transpose(primitive: Primitive, rule: Callable[..., Any]) -> None:
    """Transpose a linear primitive."""
    _ad.primitive_transposes[primitive] = rule


def is_zero(tangent: Any) -> bool:
    """Whether a tangent or cotangent is known to be zero."""
    return type(tangent) is _ad_util.Zero


def instantiate_zero(tangent: Any) -> Any:
    """A tangent as an array."""
    return _ad.instantiate_zeros(tangent)


def has_tangent(value: Any) -> bool:
    """Whether a gradient can flow through a value."""
    return bool(_core.typeof(value).to_tangent_aval().dtype != jax.dtypes.float0)


def define_in_forward_mode(primitive: Primitive, mark: Callable[[dict], dict]) -> None:
    """Change a primitive's parameters where it is bound inside ``jax.jvp``."""
    plain = type(primitive).bind_with_trace

    def bind_with_trace(trace: Any, args: Any, avals: Any, params: Any) -> Any:
        if isinstance(trace, JVPTrace):
            params = mark(dict(params))
        return plain(primitive, trace, args, avals, params)

    primitive.def_bind_with_trace(bind_with_trace)


def stage_instead_of_running(primitives: Sequence[Primitive], must: Callable[..., bool]) -> None:
    """Partial evaluation leaves an equation whole in the staged program where ``must(params)``.

    JAX would run it at once when all its inputs are known; for an equation that logs, "at once"
    can mean once instead of once an iteration.
    """
    for primitive in primitives:
        plain = _pe.custom_partial_eval_rules.get(primitive)
        _pe.custom_partial_eval_rules[primitive] = _staging_rule(primitive, plain, must)


def _staging_rule(primitive: Primitive, plain: Any, must: Callable[..., bool]) -> Any:
    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if must(params):
            tracers = tuple(trace.instantiate_const(trace.to_jaxpr_tracer(t)) for t in tracers)
            return trace.default_process_primitive(primitive, tracers, params)
        if plain is None:
            return trace.default_process_primitive(primitive, tracers, params)
        return plain(trace, *tracers, **params)

    return rule


def define_lowering(primitive: Primitive, rule: Callable[..., Any], cacheable: bool = True) -> None:
    """Register how a primitive becomes StableHLO, on every platform."""
    _mlir.register_lowering(primitive, rule, cacheable=cacheable)


def lower_to_ordered_callback(
    ctx: Any, effect: Any, callback: Callable[..., tuple], args: Sequence[Any]
) -> Any:
    """Emit one host call that takes its turn after every earlier one of the same effect."""
    sharding = _callback._callback_op_sharding(ctx.module_context.axis_context, None, ctx.avals_out)
    token = ctx.tokens_in.get(effect)
    result, token, _ = _callback.emit_python_callback(
        ctx,
        callback,
        token,
        list(args),
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=True,
        returns_token=True,
        sharding=sharding,
    )
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(_mlir.TokenSet({effect: token})))
    return result


def prepare_order(effect: Any) -> None:
    """Make the token of an ordered effect, if there is none.

    JAX would make it when the first program with the effect is called, by a transfer that
    ``jax.transfer_guard`` takes for the user's.
    """
    tokens = _dispatch.runtime_tokens
    if effect not in tokens.current_tokens:
        with jax.transfer_guard("allow"):
            tokens.get_token_input(effect, [jax.local_devices()[0]])


def guards_transfers() -> bool:
    """Whether ``jax.transfer_guard`` may object to arguments that are not on the device."""
    guard = jax.config.jax_transfer_guard_host_to_device  # type: ignore[attr-defined]
    return guard not in (None, "allow")


def order_tokens(effect: Any) -> list[Any]:
    """Arrays that are computed when the last program with an ordered effect is over."""
    token = _dispatch.runtime_tokens.current_tokens.get(effect)
    return [] if token is None else [token._buf]


def wait_for_effects() -> None:
    """``jax.effects_barrier``, which Ctrl-C can interrupt while ordered callbacks are running."""
    pause = 0.0005
    for token in list(_dispatch.runtime_tokens.current_tokens.values()):
        buffer: Any = token._buf
        while not buffer.is_ready():
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
    jax.effects_barrier()


def needs_devices_to_lower(primitive: Primitive) -> None:
    """Tell JAX that a primitive must know its devices when it is lowered."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)


#: How newer JAX calls operations that are objects; None where there is no such thing.
call_hi_primitive_p: Any = getattr(
    importlib.import_module("jax._src.hijax"), "call_hi_primitive_p", None
)


def expanded(params: dict[str, Any]) -> Callable[..., list[Any]]:
    """What the operation of a ``call_hi_primitive`` does, on flat operands."""
    operation = params["_prim"]

    def flat(*operands: Any) -> list[Any]:
        outs = operation.expand(*jax.tree.unflatten(operation.in_tree, operands))
        return jax.tree.leaves(outs)

    return flat


def replace_where_bound(
    primitive: Primitive, instead: Callable[[Sequence[Any], dict[str, Any], bool], Any]
) -> None:
    """Have ``instead(operands, params, differentiated)`` give the outputs of a primitive.

    None means that it is bound as it is. Whatever is tracing, this comes first; ``differentiated``
    says whether it is differentiation.
    """
    plain = primitive.bind_with_trace

    def bind_with_trace(trace: Any, args: Any, avals: Any, params: Any) -> Any:
        with _core.set_current_trace(trace):
            outs = instead(args, params, isinstance(trace, (_ad.JVPTrace, _ad.LinearizeTrace)))
        return plain(trace, args, avals, params) if outs is None else outs

    primitive.def_bind_with_trace(bind_with_trace)


_MARK = "sawlog"


def marked(text: str) -> Any:
    """A context whose equations carry ``text``, wherever they go, until they are lowered."""
    return _xla_metadata.set_xla_metadata(**{_MARK: text})


def mark() -> str | None:
    """What the equation carries that is being lowered."""
    found = _xla_metadata_lib.current_xla_metadata()
    return None if found is None else found.get(_MARK)


def mark_of(eqn: JaxprEqn) -> str | None:
    """What an equation carries, see :func:`marked`."""
    found = eqn.ctx.xla_metadata
    return None if not found else found.get(_MARK)


# -- rules of JAX's own primitives that must know about logs ---------------------------------------


def wrap_batching(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Replace the batching rule of a primitive by ``wrap(rule)``."""
    rules = _batching.fancy_primitive_batchers
    rules[primitive] = wrap(rules[primitive])


def forget_kept_effects() -> None:
    """Let partial evaluation forget, when it is done, the equations that it kept for their effects.

    They would go on holding tracers, which ``jax.checking_leaks`` takes for a leak of the user's.
    """
    module: Any = _pe
    plain = module.tracers_to_jaxpr

    @functools.wraps(plain)
    def tracers_to_jaxpr(inputs: Any, outputs: Any, kept: Any, debug_info: Any) -> Any:
        result = plain(inputs, outputs, kept, debug_info)
        if kept:
            kept.clear()
        return result

    module.tracers_to_jaxpr = tracers_to_jaxpr


def wrap_scan_hoisting(
    has_logs: Callable[[Any], bool], scope: Callable[[], Any], prepare: Callable[[Any], Any]
) -> None:
    """Hoist loop-invariant work out of a differentiated scan that logs inside ``scope()``.

    ``has_logs(effects)`` tells whether the body of a loop does; ``prepare(body)`` is used then.
    """
    hoist = _loops._scan_known_hoisting
    custom = _pe.partial_eval_jaxpr_custom_rules[scan_p]

    @functools.wraps(hoist)
    def hoisting(jaxpr_known: Any, *args: Any) -> Any:
        if not has_logs(jaxpr_known.effects):
            return hoist(jaxpr_known, *args)
        with scope():
            return hoist(prepare(jaxpr_known), *args)

    @functools.wraps(custom)
    def partial_eval_custom(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        if not has_logs(eqn.effects):
            return custom(saveable, unknown, instantiated, eqn)
        loop = Scan.read(eqn.params)
        eqn = eqn.replace(params=loop.changed(prepare(loop.body)))
        with scope():
            known, *rest = custom(saveable, unknown, instantiated, eqn)
        return _as_jit(known), *rest

    _loops._scan_known_hoisting = hoisting
    _pe.partial_eval_jaxpr_custom_rules[scan_p] = partial_eval_custom


def show_effects_inside(
    shows: Callable[[Primitive], bool], active: Callable[[], bool], has_logs: Callable[[Any], bool]
) -> None:
    """Give every equation that is traced the effects of the logs in the programs that it holds.

    JAX does not look into those of some primitives, and drops an equation without effects whose
    result is not used. A primitive that ``shows`` its effects is left alone, and nothing is looked
    at unless something is ``active``.
    """
    plain = _pe.DynamicJaxprTrace.default_process_primitive
    shown: set[Primitive] = set()

    @functools.wraps(plain)
    def process(
        self: Any, primitive: Any, tracers: Any, params: Any, *args: Any, **more: Any
    ) -> Any:
        known = not params or primitive in shown or not active() or shows(primitive)
        if not known and any(has_logs(inner.effects) for inner in subjaxprs(params)):
            shown.add(primitive)
            _show_effects_of(primitive, has_logs)
        return plain(self, primitive, tracers, params, *args, **more)

    _pe.DynamicJaxprTrace.default_process_primitive = process  # type: ignore[method-assign]


def _show_effects_of(primitive: Primitive, has_logs: Callable[[Any], bool]) -> None:
    plain = primitive.abstract_eval

    @functools.wraps(plain)
    def abstract_eval(*avals: Any, **params: Any) -> Any:
        types, effects = plain(*avals, **params)
        inside = {e for inner in subjaxprs(params) for e in inner.effects if has_logs([e])}
        return types, {*effects, *inside} if inside else effects

    primitive.abstract_eval = abstract_eval  # type: ignore[method-assign]


def batch_logs_of_unmapped(primitive: Primitive, has_logs: Callable[[Any], bool]) -> None:
    """Have the logs in the program of a primitive batched though none of its operands is mapped."""
    plain = _batching.fancy_primitive_batchers.get(primitive)

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        unmapped = all(dim is None for dim in dims)
        program = next(n for n in ("jaxpr", "call_jaxpr", "call") if n in params)
        if unmapped and has_logs(params[program].effects):
            inputs = [False] * len(values)
            closed, _ = _batching.batch_jaxpr(params[program], axis_data, inputs, False)
            params = {**params, program: closed}
        elif plain is not None:
            return plain(axis_data, values, dims, **params)
        if not unmapped:
            raise NotImplementedError(f"Batching rule for '{primitive}' not implemented")
        outs = primitive.bind(*values, **params)
        return outs, [None] * len(outs)

    _batching.fancy_primitive_batchers[primitive] = batch


def _as_jit(eqn: Any) -> Any:
    """A ``closed_call`` as a ``jit``, whose partial evaluation can be told to stage it whole."""
    if eqn is None or eqn.primitive is not closed_call_p:
        return eqn
    fun = jax.jit(_core.jaxpr_as_fun(eqn.params["call_jaxpr"]))
    traced = trace_flat(fun, [v.aval for v in eqn.invars], "scan").eqns[-1]
    return eqn.replace(primitive=traced.primitive, params=traced.params, effects=traced.effects)


def wrap_jvp(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Replace the rule of a primitive in forward mode by ``wrap(rule)``."""
    _ad.primitive_jvps[primitive] = wrap(_ad.primitive_jvps[primitive])


def wrap_while_recomputation(silence: Callable[[dict], dict]) -> None:
    """Where a ``while_loop`` runs again after its known part did, use ``silence(params)``."""
    plain = _pe.custom_partial_eval_rules[while_p]
    custom = _pe.partial_eval_jaxpr_custom_rules[while_p]

    @functools.wraps(plain)
    def partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        outs = plain(trace, *tracers, **params)
        unknown = [x for x in outs if isinstance(x, _pe.JaxprTracer) and not x.is_known()]
        if unknown and len(unknown) < len(outs):
            recipe: Any = unknown[0].recipe
            silent = silence(dict(recipe.params))
            _, effs = while_p.abstract_eval(*(t.aval for t in recipe.in_tracers), **silent)
            for tracer in unknown:
                tracer.recipe = recipe._replace(params=silent, effects=effs)
        return outs

    @functools.wraps(custom)
    def partial_eval_custom(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        known, staged, *rest = custom(saveable, unknown, instantiated, eqn)
        if known is not None and staged is not None:
            silent = silence(dict(staged.params))
            _, effs = while_p.abstract_eval(*(v.aval for v in staged.invars), **silent)
            staged = staged.replace(params=silent, effects=effs)
        return known, staged, *rest

    _pe.custom_partial_eval_rules[while_p] = partial_eval
    _pe.partial_eval_jaxpr_custom_rules[while_p] = partial_eval_custom


# -- equations of JAX's own primitives -----------------------------------------------------------


def subjaxprs(params: dict[str, Any]) -> list[Any]:
    """Every jaxpr among the parameters of an equation, open or closed."""
    found: list[Any] = []
    stack = list(params.values())
    while stack:
        value = stack.pop(0)
        if isinstance(value, (Jaxpr, ClosedJaxpr)):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            stack = [*value, *stack]
        elif isinstance(value, dict):
            stack = [*value.values(), *stack]
        elif is_frozen(value):
            stack = [*vars(value).values(), *stack]
    return found


def is_frozen(value: Any) -> bool:
    """Whether this is a frozen dataclass, in which primitives such as ``pallas_call`` hold more."""
    options = getattr(type(value), "__dataclass_params__", None)
    return bool(options is not None and options.frozen and hasattr(value, "__dict__"))


def inner_jaxpr(eqn: JaxprEqn) -> Any:
    """The program that an equation of ``jit``, ``checkpoint``, ``custom_jvp`` or the like calls."""
    for name in ("jaxpr", "call_jaxpr", "call", "fwd_jaxpr"):
        if name in eqn.params:
            return eqn.params[name]
    raise AssertionError(eqn.primitive)


def bind_jit(
    eqn: JaxprEqn, closed: ClosedJaxpr, before: Sequence[Any], values: Sequence[Any], after: int
) -> list[Any]:
    """Bind a ``jit`` with another program: more inputs in front, ``after`` more outputs behind."""
    params, count = eqn.params, len(before)
    params = {
        **params,
        "jaxpr": closed,
        "in_shardings": (UNSPECIFIED,) * count + tuple(params["in_shardings"]),
        "in_layouts": (None,) * count + tuple(params["in_layouts"]),
        "donated_invars": (False,) * count + tuple(params["donated_invars"]),
        "out_shardings": tuple(params["out_shardings"]) + (UNSPECIFIED,) * after,
        "out_layouts": tuple(params["out_layouts"]) + (None,) * after,
    }
    return list(eqn.primitive.bind(*before, *values, **params))


def bind_checkpoint(
    eqn: JaxprEqn, closed: ClosedJaxpr, before: Sequence[Any], values: Sequence[Any]
) -> list[Any]:
    """Bind a ``checkpoint`` with another program that takes more inputs in front."""
    jaxpr, consts = _inline_consts(closed)
    before, params = [*consts, *before], eqn.params
    prevent_cse = params["prevent_cse"]
    if isinstance(prevent_cse, tuple):
        prevent_cse = (True,) * len(before) + prevent_cse
    params = {**params, "jaxpr": jaxpr, "prevent_cse": prevent_cse}
    return list(eqn.primitive.bind(*before, *values, **params))


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
    flattree: Any = importlib.import_module("jax._src.flattree")
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


def branches_of(eqn: JaxprEqn) -> tuple[ClosedJaxpr, ...]:
    """The branches of a ``cond`` or ``switch``."""
    return tuple(eqn.params["branches"])


def bind_branches(eqn: JaxprEqn, values: Sequence[Any], branches: Sequence[Any]) -> list[Any]:
    """Bind a ``cond`` with other branches."""
    return list(eqn.primitive.bind(*values, **{**eqn.params, "branches": tuple(branches)}))


def with_branches(eqn: JaxprEqn, branches: Sequence[Any]) -> JaxprEqn:
    """The same equation of ``cond`` with other branches, of the same types."""
    return eqn.replace(params={**eqn.params, "branches": tuple(branches)})


def with_equations(closed: ClosedJaxpr, eqns: Sequence[JaxprEqn]) -> ClosedJaxpr:
    """The same program with other equations, which make the same variables."""
    return ClosedJaxpr(closed.jaxpr.replace(eqns=list(eqns)), closed.consts)


def linear_solver(eqn: JaxprEqn, values: Sequence[Any]) -> tuple[ClosedJaxpr, list[Any]]:
    """The program by which a ``custom_linear_solve`` solves, and its operands."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    start = lengths.matvec + lengths.vecmat
    return solve, [*values[start : start + lengths.solve], *values[sum(lengths) :]]


@dataclasses.dataclass(frozen=True)
class ShardMap:
    """A ``shard_map``: an open jaxpr that runs on each shard."""

    jaxpr: Any
    mesh: Any
    axes: tuple[str, ...]
    in_specs: tuple[Any, ...]
    out_specs: tuple[Any, ...]
    check_vma: bool

    @classmethod
    def read(cls, eqn: JaxprEqn) -> ShardMap:
        """What the parameters of an equation say; ``axes`` are those that it makes manual."""
        params = eqn.params
        manual = params["newly_manual_axes"]
        axes = tuple(name for name in params["mesh"].axis_names if name in manual)
        specs = tuple(params["in_specs"]), tuple(params["out_specs"])
        return cls(params["jaxpr"], params["mesh"], axes, *specs, bool(params["check_vma"]))


# -- functions made by jax.jit ---------------------------------------------------------------------


_JIT_ARGUMENTS = ("static_argnums", "static_argnames", "donate_argnums", "donate_argnames")


def jit_arguments(fun: Any) -> dict[str, Any]:
    """Which arguments a function made by ``jax.jit`` takes as static and which it donates.

    Also where it is bound to an object or to some of its arguments, and where ``nnx.jit`` made it.
    """
    if isinstance(fun, types.MethodType):
        return _after(jit_arguments(fun.__func__), fun.__func__, 1)
    if isinstance(fun, functools.partial):
        return _after(jit_arguments(fun.func), fun.func, len(fun.args), fun.keywords)
    info = getattr(fun, "_jit_info", None)
    if info is None:
        inner = getattr(getattr(fun, "jitted_fn", None), "_jit_info", None)  # of flax.nnx
        return {} if inner is None else _those_of(inner, _JIT_ARGUMENTS[:2])
    return _those_of(info, _JIT_ARGUMENTS)


def _those_of(info: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: tuple(getattr(info, name)) for name in names if getattr(info, name, None)}


def _after(given: dict[str, Any], fun: Any, count: int, keywords: Any = ()) -> dict[str, Any]:
    """The same for the rest of the arguments, when the first ones and some keywords are bound."""
    bound = set(keywords)
    with contextlib.suppress(TypeError, ValueError):
        bound.update(list(inspect.signature(fun).parameters)[:count])
    kept: dict[str, Any] = {}
    for name, values in given.items():
        if name.endswith("nums"):
            kept[name] = tuple(i - count if i >= 0 else i for i in values if not 0 <= i < count)
        else:
            kept[name] = tuple(value for value in values if value not in bound)
    return {name: values for name, values in kept.items() if values}


def compiler_options(fun: Any) -> dict[str, Any]:
    """The options for the compiler that a function made by ``jax.jit`` was given."""
    return dict(getattr(getattr(fun, "_jit_info", None), "compiler_options_kvs", ()))


#: Experimental settings under which JAX differentiates in a way that counts logs otherwise.
_UNTRIED_SETTINGS = ("jax_remat3", "jax_custom_vjp3")


def untried_settings() -> list[str]:
    """Those that are on."""
    return [name for name in _UNTRIED_SETTINGS if getattr(jax.config, name, False)]


def is_jax_value(value: Any) -> bool:
    """Whether ``jax.jit`` takes ``value`` as an argument that is traced."""
    try:
        _core.shaped_abstractify(value)
    except (TypeError, AssertionError):
        return False
    return True
