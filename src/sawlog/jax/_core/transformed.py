"""What ``spool`` and ``tap`` return: a function with the methods of ``jax.jit``."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax

from sawlog.jax import _compat
from sawlog.jax._core import libraries
from sawlog.jax._core.functions import name_of, named_like
from sawlog.jax._core.static_arguments import StaticLeaf, is_wrapped, unwrap

if TYPE_CHECKING:
    from sawlog.jax._core.program import Program


class Transformed:
    """A function with the name and signature of ``fun`` that calls ``call``.

    ``lower``, ``trace`` and ``eval_shape`` are those of ``jax.jit``. They are methods, and this
    class stores nothing in ``__dict__``: ``jax.vmap(spool(f))`` copies ``__dict__``, and must not
    lower like ``spool(f)``.
    """

    __slots__ = ("__dict__", "__weakref__", "_call", "_program")

    def __init__(self, fun: Callable[..., Any], call: Callable[..., Any], program: Program) -> None:
        self._call = call
        self._program = program
        functools.update_wrapper(self, fun)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<sawlog function {name_of(self)}>"

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace and lower for these arguments, like ``jax.jit(f).lower``."""
        new_args, new_kwargs = self._prepared(args, kwargs)
        lowered = self._jitted().lower(*new_args, **new_kwargs)
        return lowered if new_args is args else _PreparedStage(lowered, self._prepared)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace for these arguments, like ``jax.jit(f).trace``."""
        args, kwargs = self._prepared(args, kwargs)
        return self._jitted().trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return the shapes and dtypes of the outputs, like ``jax.jit(f).eval_shape``."""
        args, kwargs = self._prepared(args, kwargs)
        return self._jitted().eval_shape(*args, **kwargs)

    # `logdict` knows this method by its name, see `_compat.flattened_for`.
    def _prepared(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Wrap the static arguments that no option of ``jax.jit`` declares."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        static = {
            *libraries.static_scalars(self._program.fun(), (args, kwargs), tree, leaves),
            *(i for i, leaf in enumerate(leaves) if not _compat.is_jax_value(leaf)),
        }
        static.difference_update(self._program.declared_static(args, kwargs))
        for i in static:
            leaves[i] = StaticLeaf(leaves[i])
        return jax.tree.unflatten(tree, leaves) if static else (args, kwargs)

    def _jitted(self) -> Any:
        def body(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = jax.tree.map(unwrap, (args, kwargs), is_leaf=is_wrapped)
            return self._call(*args, **kwargs)

        return jax.jit(named_like(body, self._program.fun(), 0), **self._program.options)


class _PreparedStage:
    """A ``jax.stages`` object whose calls take the user's arguments, before they are wrapped."""

    def __init__(self, stage: Any, prepare: Callable[..., Any]) -> None:
        self._stage = stage
        self._prepare = prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def compile(self, *args: Any, **kwargs: Any) -> _PreparedStage:
        """Compile, like ``jax.stages.Lowered.compile``."""
        return _PreparedStage(self._stage.compile(*args, **kwargs), self._prepare)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._prepare(args, kwargs)
        return self._stage(*args, **kwargs)
