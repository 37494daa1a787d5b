"""Patches: rules of JAX's own primitives that must know about logs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.jax._compat import private
from sawlog.jax._compat.equations import subjaxprs
from sawlog.jax._compat.loops import Scan
from sawlog.jax._compat.private import Primitive, closed_call_p, scan_p, while_p
from sawlog.jax._compat.tracing import trace_flat
from sawlog.jax._compat.values import varying_axes


def wrap_batching(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Replace the batching rule of a primitive by ``wrap(rule)``."""
    rules = private.batching.fancy_primitive_batchers
    rules[primitive] = wrap(rules[primitive])


def batch_pvary_of_varying() -> None:
    """Let ``vmap`` map a ``pvary`` whose operand varies along its axes already.

    The type of a ``cond`` in ``shard_map`` does not say that its results vary along the axes of the
    predicate. Where ``vmap`` maps the predicate it does, and JAX would raise an error.
    """

    def wrap(rule: Any) -> Any:
        def batch(axis_data: Any, values: Any, dims: Any, *, axes: Any) -> Any:
            missing = tuple(axis for axis in axes if axis not in varying_axes(values[0]))
            if not missing:
                return values[0], dims[0]
            return rule(axis_data, values, dims, axes=missing)

        return batch

    wrap_batching(private.core.pvary_p, wrap)


def batch_logs_of_unmapped(primitive: Primitive, has_logs: Callable[[Any], bool]) -> None:
    """Batch the logs inside a primitive also where none of its operands is mapped."""
    plain = private.batching.fancy_primitive_batchers.get(primitive)

    def batch(axis_data: Any, values: Any, dims: Any, **params: Any) -> Any:
        unmapped = all(dim is None for dim in dims)
        program = next(n for n in ("jaxpr", "call_jaxpr", "call") if n in params)
        if unmapped and has_logs(params[program].effects):
            inputs = [False] * len(values)
            closed, _ = private.batching.batch_jaxpr(params[program], axis_data, inputs, False)
            params = {**params, program: closed}
        elif plain is not None:
            return plain(axis_data, values, dims, **params)
        if not unmapped:
            raise NotImplementedError(f"Batching rule for '{primitive}' not implemented")
        outs = primitive.bind(*values, **params)
        return outs, [None] * len(outs)

    private.batching.fancy_primitive_batchers[primitive] = batch


def wrap_jvp(primitive: Primitive, wrap: Callable[[Any], Any]) -> None:
    """Replace the forward-mode rule of a primitive by ``wrap(rule)``."""
    private.ad.primitive_jvps[primitive] = wrap(private.ad.primitive_jvps[primitive])


def mark_without_tangents(
    applies: Callable[[Primitive, dict], bool], mark: Callable[[dict], dict]
) -> None:
    """Apply ``mark`` to the parameters of equations in ``jax.jvp`` whose operands have no tangents.

    JAX binds such an equation as it is, outside of the derivative.
    """
    plain = private.ad.JVPTrace.process_primitive

    @functools.wraps(plain)
    def process(self: Any, primitive: Any, tracers: Any, params: Any, /) -> Any:
        if params and applies(primitive, params):
            tangents = [self.to_primal_tangent_pair(tracer)[1] for tracer in tracers]
            if all(isinstance(tangent, private.ad_util.Zero) for tangent in tangents):
                params = mark(dict(params))
        return plain(self, primitive, tracers, params)

    private.ad.JVPTrace.process_primitive = process  # type: ignore[method-assign]


def stage_instead_of_running(primitives: Sequence[Primitive], must: Callable[..., bool]) -> None:
    """Keep an equation whole in the staged program during partial evaluation if ``must(params)``.

    JAX would evaluate it immediately when all its inputs are known. An equation that logs could
    then run once instead of once per iteration.
    """
    for primitive in primitives:
        plain = private.partial_eval.custom_partial_eval_rules.get(primitive)
        private.partial_eval.custom_partial_eval_rules[primitive] = _staging_rule(
            primitive, plain, must
        )


def _staging_rule(primitive: Primitive, plain: Any, must: Callable[..., bool]) -> Any:
    def staged_without_operands(trace: Any, params: Any) -> Any:
        # JAX evaluates an equation immediately if no operand is unknown: give it one to wait for.
        fun = jax.jit(lambda _: primitive.bind(**params))
        unused = np.zeros((), np.int32)
        eqn = trace_flat(fun, [private.core.typeof(unused)], primitive.name).eqns[-1]
        operand = trace.new_instantiated_const(unused)
        return trace.default_process_primitive(eqn.primitive, (operand,), eqn.params)

    def rule(trace: Any, *tracers: Any, **params: Any) -> Any:
        if must(params):
            if not tracers:
                return staged_without_operands(trace, params)
            tracers = tuple(trace.instantiate_const(trace.to_jaxpr_tracer(t)) for t in tracers)
            return trace.default_process_primitive(primitive, tracers, params)
        if plain is None:
            return trace.default_process_primitive(primitive, tracers, params)
        return plain(trace, *tracers, **params)

    return rule


def wrap_scan_hoisting(
    has_logs: Callable[[Any], bool], scope: Callable[[], Any], prepare: Callable[[Any], Any]
) -> None:
    """Enter ``scope()`` where JAX hoists work out of a differentiated scan with logs inside.

    Args:
        has_logs: Returns whether the effects of a body are those of logs.
        scope: Returns the context to enter.
        prepare: Returns the body to hoist from.
    """
    hoist = private.loops._scan_known_hoisting
    custom = private.partial_eval.partial_eval_jaxpr_custom_rules[scan_p]

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

    private.loops._scan_known_hoisting = hoisting
    private.partial_eval.partial_eval_jaxpr_custom_rules[scan_p] = partial_eval_custom


def _as_jit(eqn: Any) -> Any:
    """Turn a ``closed_call`` into a ``jit``, which ``stage_instead_of_running`` covers."""
    if eqn is None or eqn.primitive is not closed_call_p:
        return eqn
    fun = jax.jit(private.core.jaxpr_as_fun(eqn.params["call_jaxpr"]))
    traced = trace_flat(fun, [v.aval for v in eqn.invars], "scan").eqns[-1]
    return eqn.replace(primitive=traced.primitive, params=traced.params)


def wrap_while_recomputation(
    silence: Callable[[dict], dict], has_logs: Callable[[Any], bool]
) -> None:
    """Remove the logs of a ``while_loop`` that runs again for its unknown part.

    Args:
        silence: Returns the parameters of a ``while_loop`` without the logs inside.
        has_logs: Returns whether effects are those of logs.
    """
    plain = private.partial_eval.custom_partial_eval_rules[while_p]
    custom = private.partial_eval.partial_eval_jaxpr_custom_rules[while_p]

    def without_logs(effects: Any) -> set[Any]:
        return {effect for effect in effects if not has_logs([effect])}

    @functools.wraps(plain)
    def partial_eval(trace: Any, *tracers: Any, **params: Any) -> Any:
        kept = len(trace.effect_handles)
        outs = plain(trace, *tracers, **params)
        unknown = [
            x for x in outs if isinstance(x, private.partial_eval.JaxprTracer) and not x.is_known()
        ]
        # Without unknown results, the second run is kept for references of unknown content.
        handles = trace.effect_handles[kept:]
        again = [*unknown, *handles]
        if again and len(unknown) < len(outs) and has_logs(again[0].recipe.effects):
            recipe = again[0].recipe
            silent = recipe._replace(
                params=silence(dict(recipe.params)), effects=without_logs(recipe.effects)
            )
            for tracer in unknown:
                tracer.recipe = silent
            keeps = private.effects.partial_eval_kept_effects.filter_in(silent.effects)
            trace.effect_handles[kept:] = [
                dataclasses.replace(handle, recipe=silent) for handle in handles if keeps
            ]
        return outs

    @functools.wraps(custom)
    def partial_eval_custom(saveable: Any, unknown: Any, instantiated: Any, eqn: Any) -> Any:
        known, staged, *rest = custom(saveable, unknown, instantiated, eqn)
        if known is not None and staged is not None and has_logs(staged.effects):
            staged = staged.replace(
                params=silence(dict(staged.params)), effects=without_logs(staged.effects)
            )
        return known, staged, *rest

    private.partial_eval.custom_partial_eval_rules[while_p] = partial_eval
    private.partial_eval.partial_eval_jaxpr_custom_rules[while_p] = partial_eval_custom


def show_effects_inside(
    shows: Callable[[Primitive], bool], active: Callable[[], bool], has_logs: Callable[[Any], bool]
) -> None:
    """Give every traced equation the effects of the logs inside its programs.

    For some primitives JAX ignores these effects, and removes an equation without effects whose
    result is not used.

    Args:
        shows: Returns whether JAX reports the effects inside a primitive already.
        active: Returns whether equations need to be checked at all.
        has_logs: Returns whether effects are those of logs.
    """
    plain = private.partial_eval.DynamicJaxprTrace.default_process_primitive
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

    private.partial_eval.DynamicJaxprTrace.default_process_primitive = process  # type: ignore[method-assign]


def _show_effects_of(primitive: Primitive, has_logs: Callable[[Any], bool]) -> None:
    plain = primitive.abstract_eval

    @functools.wraps(plain)
    def abstract_eval(*avals: Any, **params: Any) -> Any:
        types, effects = plain(*avals, **params)
        inside = {e for inner in subjaxprs(params) for e in inner.effects if has_logs([e])}
        return types, {*effects, *inside} if inside else effects

    primitive.abstract_eval = abstract_eval  # type: ignore[method-assign]


def forget_kept_effects() -> None:
    """Clear the list of equations that partial evaluation keeps for their effects, once done.

    The list would keep tracers alive, and ``jax.checking_leaks`` would report a leak.
    """
    module: Any = private.partial_eval
    plain = module.tracers_to_jaxpr

    @functools.wraps(plain)
    def tracers_to_jaxpr(inputs: Any, outputs: Any, kept: Any, debug_info: Any) -> Any:
        result = plain(inputs, outputs, kept, debug_info)
        if kept:
            kept.clear()
        return result

    module.tracers_to_jaxpr = tracers_to_jaxpr
