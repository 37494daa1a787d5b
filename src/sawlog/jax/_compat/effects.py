"""Effects that keep logs in a program, and ordered callbacks to the host."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from sawlog.jax._compat import private
from sawlog.jax._compat.private import Primitive

Effect = private.effects.Effect


def register_effect(effect_type: type, *, ordered: bool) -> None:
    """Allow an effect in lowering, control flow, remat and custom derivatives."""
    for allowed in (
        private.effects.lowerable_effects,
        private.effects.control_flow_allowed_effects,
        private.effects.remat_allowed_effects,
        private.effects.custom_derivatives_allowed_effects,
        private.effects.partial_eval_kept_effects,
    ):
        allowed.add_type(effect_type)
    if ordered:
        private.effects.ordered_effects.add_type(effect_type)
        private.effects.shardable_ordered_effects.add_type(effect_type)


def lower_to_ordered_callback(
    ctx: Any, effect: Any, callback: Callable[..., tuple], args: Sequence[Any]
) -> Any:
    """Emit a host call that runs after every earlier one with the same effect."""
    sharding = private.callback._callback_op_sharding(
        ctx.module_context.axis_context, None, ctx.avals_out
    )
    token = ctx.tokens_in.get(effect)
    result, token, _ = private.callback.emit_python_callback(
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
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(private.mlir.TokenSet({effect: token})))
    return result


def is_split_over_processes(ctx: Any) -> bool:
    """Return whether a host call is made for each shard, and other processes have some of these."""
    if jax.process_count() == 1:
        return False
    context = ctx.module_context.axis_context
    if not getattr(context, "manual_axes", None):
        return False
    devices = getattr(context.mesh, "devices", None)
    if devices is None:
        return bool(context.mesh.size > jax.local_device_count())
    return any(device.process_index != jax.process_index() for device in devices.flat)


def prepare_order(effect: Any) -> None:
    """Create the token of an ordered effect unless it exists.

    JAX would create it when the first program with the effect is called, by a transfer that
    ``jax.transfer_guard`` counts as the user's.
    """
    tokens = private.dispatch.runtime_tokens
    if effect not in tokens.current_tokens:
        with jax.transfer_guard("allow"):
            tokens.get_token_input(effect, [jax.local_devices()[0]])


def guards_transfers() -> bool:
    """Return whether ``jax.transfer_guard`` may reject arguments that are not on the device."""
    guard = jax.config.jax_transfer_guard_host_to_device  # type: ignore[attr-defined]
    return guard not in (None, "allow")


def order_tokens(effect: Any) -> list[Any]:
    """Return arrays that are ready once the last program with an ordered effect has finished."""
    token = private.dispatch.runtime_tokens.current_tokens.get(effect)
    return [] if token is None else [token._buf]


def wait_for_effects() -> None:
    """Wait like ``jax.effects_barrier``, but let Ctrl-C interrupt while ordered callbacks run."""
    pause = 0.0005
    for token in list(private.dispatch.runtime_tokens.current_tokens.values()):
        buffer: Any = token._buf
        while not buffer.is_ready():
            time.sleep(pause)
            pause = min(2 * pause, 0.02)
    jax.effects_barrier()


def needs_devices_to_lower(primitive: Primitive) -> None:
    """Declare that lowering a primitive needs to know its devices."""
    private.dispatch.prim_requires_devices_during_lowering.add(primitive)
