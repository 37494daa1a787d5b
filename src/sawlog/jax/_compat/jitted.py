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
    """Return the options of a jitted function that declare static and donated arguments.

    Bound methods, partials and functions of ``nnx.jit`` are covered too.
    """
    if isinstance(fun, types.MethodType):
        return _after_binding(jit_arguments(fun.__func__), fun.__func__, 1)
    if isinstance(fun, functools.partial):
        return _after_binding(jit_arguments(fun.func), fun.func, len(fun.args), fun.keywords)
    info = getattr(fun, "_jit_info", None)
    if info is None:
        inner = getattr(getattr(fun, "jitted_fn", None), "_jit_info", None)  # of flax.nnx
        return {} if inner is None else _options_of(inner, _JIT_ARGUMENTS[:2])
    return _options_of(info, _JIT_ARGUMENTS)


def _options_of(info: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: tuple(getattr(info, name)) for name in names if getattr(info, name, None)}


def _after_binding(
    given: dict[str, Any], fun: Any, count: int, keywords: Any = ()
) -> dict[str, Any]:
    """Return the options for the remaining arguments once ``count`` and ``keywords`` are bound."""
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
    """Return the ``compiler_options`` of a jitted function."""
    return dict(getattr(getattr(fun, "_jit_info", None), "compiler_options_kvs", ()))


#: Experimental settings that change how JAX differentiates, and so how often a log runs.
_UNSUPPORTED_SETTINGS = ("jax_remat3", "jax_custom_vjp3", "jax_custom_jvp3", "jax_scan3")


def unsupported_settings() -> list[str]:
    """Return the unsupported settings that are on."""
    return [name for name in _UNSUPPORTED_SETTINGS if getattr(jax.config, name, False)]
