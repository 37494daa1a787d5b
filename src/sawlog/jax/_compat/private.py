"""Every private module of JAX that sawlog uses, and the check that none of it is missing.

This file alone imports ``jax._src``. The other files of this folder write ``private.core.Tracer``;
``USED`` lists each such name. All of them are checked at import, so that a JAX without one of them
is refused at once instead of failing in the middle of a program.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from sawlog.jax import _versions

try:
    from jax._src import ad_util as ad_util
    from jax._src import api as api
    from jax._src import callback as callback
    from jax._src import core as core
    from jax._src import custom_batching as custom_batching
    from jax._src import custom_derivatives as custom_derivatives
    from jax._src import dispatch as dispatch
    from jax._src import distributed as distributed
    from jax._src import effects as effects
    from jax._src import hijax as hijax
    from jax._src import linear_util as linear_util
    from jax._src import shard_map as shard_map
    from jax._src import source_info_util as source_info_util
    from jax._src import xla_metadata_lib as xla_metadata_lib
    from jax._src.interpreters import ad as ad
    from jax._src.interpreters import batching as batching
    from jax._src.interpreters import mlir as mlir
    from jax._src.interpreters import partial_eval as partial_eval
    from jax._src.lax import lax as lax
    from jax._src.lax.control_flow import loops as loops
    from jax._src.named_sharding import UNSPECIFIED as UNSPECIFIED
    from jax.experimental import xla_metadata as xla_metadata
    from jax.extend.core import ClosedJaxpr as ClosedJaxpr
    from jax.extend.core import Jaxpr as Jaxpr
    from jax.extend.core import JaxprEqn as JaxprEqn
    from jax.extend.core import Literal as Literal
    from jax.extend.core import Primitive as Primitive
    from jax.extend.core.primitives import closed_call_p as closed_call_p
    from jax.extend.core.primitives import scan_p as scan_p
    from jax.extend.core.primitives import while_p as while_p
except ImportError as _error:  # a module or a name was removed
    raise _versions.misfit([str(_error)]) from _error

#: The names that sawlog uses from each private module.
USED = {
    ad: "JVPTrace LinearizeTrace instantiate_zeros linearize primitive_jvps "
    "primitive_linearizations primitive_transposes",
    ad_util: "Zero",
    api: "__file__ jacfwd",
    batching: "batch_jaxpr bdim_at_front fancy_primitive_batchers",
    callback: "_callback_op_sharding emit_python_callback",
    core: "AbstractValue DebugInfo EvalTrace ShapedArray Tracer eval_context "
    "internal_mutable_array_effect jaxpr_as_fun "
    "mapped_aval pvary_p set_current_trace shaped_abstractify trace_ctx trace_state_clean typeof",
    custom_batching: "custom_vmap_p",
    custom_derivatives: "remat_opt_p",
    distributed: "global_state",
    dispatch: "prim_requires_devices_during_lowering runtime_tokens",
    effects: "Effect control_flow_allowed_effects custom_derivatives_allowed_effects "
    "lowerable_effects ordered_effects partial_eval_kept_effects remat_allowed_effects "
    "shardable_ordered_effects",
    lax: "composite_p reduce_p",
    linear_util: "wrap_init",
    loops: "_scan_known_hoisting",
    mlir: "TokenSet register_lowering",
    partial_eval: "DynamicJaxprTrace JaxprTracer convert_constvars_jaxpr "
    "custom_partial_eval_rules partial_eval_jaxpr_custom_rules trace_to_jaxpr_dynamic "
    "tracers_to_jaxpr",
    shard_map: "shard_map_p",
    source_info_util: "Scope Transform current_name_stack register_exclusion summarize "
    "user_context",
    xla_metadata: "set_xla_metadata",
    xla_metadata_lib: "current_xla_metadata",
}

#: Rules of JAX's own primitives that ``patches.py`` wraps: what, module, table and primitive.
WRAPPED = (
    ("batching rule of while_loop", batching, "fancy_primitive_batchers", while_p),
    ("batching rule of pvary", batching, "fancy_primitive_batchers", core.pvary_p),
    ("forward rule of while_loop", ad, "primitive_jvps", while_p),
    ("partial evaluation of while_loop", partial_eval, "custom_partial_eval_rules", while_p),
    ("partial evaluation of while_loop", partial_eval, "partial_eval_jaxpr_custom_rules", while_p),
    ("partial evaluation of scan", partial_eval, "partial_eval_jaxpr_custom_rules", scan_p),
)


def _missing() -> Iterator[str]:
    """Yield what the installed JAX lacks."""
    for module, names in USED.items():
        yield from (f"{module.__name__}.{n}" for n in names.split() if not hasattr(module, n))
    for what, module, table, primitive in WRAPPED:
        if primitive not in getattr(module, table, ()):
            yield f"the {what}"
    if hi_primitive is None:
        yield f"{hijax.__name__}.HiPrim"


#: What operations that are objects inherit from, by its name in newer and in older JAX.
hi_primitive: Any = getattr(hijax, "HiPrim", None) or getattr(hijax, "VJPHiPrimitive", None)

if _absent := list(_missing()):
    raise _versions.misfit([f"it lacks {name}" for name in _absent])

#: How newer JAX calls operations that are objects (``HiPrim``); None in a JAX without them.
call_hi_primitive_p: Any = getattr(hijax, "call_hi_primitive_p", None)


def flattree() -> Any:
    """Import the module in which JAX 0.11 and newer group the operands of a loop."""
    return importlib.import_module("jax._src.flattree")
