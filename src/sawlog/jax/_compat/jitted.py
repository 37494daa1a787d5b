"""Functions made by ``jax.jit``: which options they were given."""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Sequence
from typing import Any

import jax

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
