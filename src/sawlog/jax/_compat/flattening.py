"""Who flattens a pytree: user code, or JAX for itself."""

from __future__ import annotations

import sys
from typing import Any

#: Modules of ``jax.tree`` functions. The frame that calls them is the one that flattens.
_TREE_MODULES = (
    "functools",
    "jax._src.flatten_util",
    "jax._src.flattree",
    "jax._src.traceback_util",
    "jax._src.tree",
)
#: Functions of JAX that flatten only their arguments, not values that they computed.
_FLATTEN_ARGUMENTS_BY_MODULE = {
    "jax._src.api": """block_until_ready copy_to_host_async device_get device_put eval_shape grad_f
        value_and_grad_f vjp vmap_f""",
    "jax._src.pjit": """_infer_params cache_miss eval_shape jit_eval_shape jit_lower jit_trace lower
        trace""",
    "jax._src.api_util": "debug_info _non_static_arg_names <genexpr>",
    "jax._src.ad_checkpoint": "fun_remat",
    "jax._src.lax.control_flow.loops": "fori_loop map scan while_loop",
    "jax._src.lax.control_flow.conditionals": "cond switch",
}
_FLATTEN_ARGUMENTS = {
    (module, name)
    for module, names in _FLATTEN_ARGUMENTS_BY_MODULE.items()
    for name in names.split()
}


def flattened_for(own_calls: frozenset[str]) -> bool:
    """Return whether a pytree is flattened because user code passed it to a function.

    Call it from the flatten function of a pytree, or from a function that ``_flatten_with_keys``
    calls. JAX also flattens values that it has just unflattened, and relies on finding the same
    leaves: then the answer is False. It is also False for what sawlog flattens itself, except for
    calls of compiled functions and in the functions of sawlog that ``own_calls`` names.
    """
    frame: Any = sys._getframe(2)
    if frame.f_code.co_name == "_flatten_with_keys":
        frame = frame.f_back
    direct, maps = True, False
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        if module != "functools" and not module.startswith(("jax.", "jaxlib.")):
            return direct or not module.startswith("sawlog.") or name in own_calls
        if module.startswith(_TREE_MODULES):
            maps = maps or name == "tree_map"
        elif (module, name) not in _FLATTEN_ARGUMENTS or (name == "scan" and maps):
            return False  # a scan without jit maps over the outputs of its body, to stack them
        direct = False
        frame = frame.f_back
    return False
