"""Calling a transformed function as ``jax.jit`` would: traced once for each signature, then cached.

``spool(f)(x)`` written twice must not trace twice. So the compiled side of a transformation, a
:class:`Program`, is kept in a table by function and options. The table holds functions weakly: it
never keeps one alive.

Inside a program that is already being compiled there is nothing to compile: the function is called
with exactly the arguments that it was given, Python scalars included.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from sawlog.errors import ArgumentError, UnsupportedJaxError
from sawlog.jax import _compat
from sawlog.jax._core import libraries
from sawlog.jax._core.functions import name_of, named_like, weak_reference
from sawlog.jax._core.opaque_primitives import open_known
from sawlog.jax._core.primitive import listening
from sawlog.jax._core.static_arguments import (
    NonArrayLeaf,
    StaticPart,
    declared_static,
    partition,
    restore_outputs,
    shifted,
    unwrap_outputs,
)

Evaluate = Callable[[Any, list[Any], Sequence[Any]], tuple[list[Any], Any]]
"""``evaluate(closed_jaxpr, args, hidden) -> (flat outputs, what the transformation adds)``."""


class _NotPlainError(Exception):
    """Arguments were traced that must be inspected first."""


class Program:
    """The compiled side of a transformation of one function.

    A program is *plain* while ``jax.jit`` alone handles all its arguments correctly. A call is then
    one call of ``jax.jit``. An argument of another kind is found when its signature is traced; from
    then on each call inspects its arguments first.

    Args:
        fun: The function. It is held weakly.
        evaluate: evaluate the traced function with its logs, see :data:`Evaluate`.
        hidden: The number of hidden values: inputs of the transformation's own, given at each call.
        options: Options of ``jax.jit`` that say which arguments are static.
        scope: Returns the context in which the function is traced.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        evaluate: Evaluate,
        hidden: int = 0,
        options: dict[str, Any] | None = None,
        scope: Callable[[], Any] = listening,
    ) -> None:
        self.fun = weak_reference(fun)
        self._evaluate = evaluate
        self._hidden = hidden
        self._scope = scope
        self._calls_back = False
        self._is_plain = False
        self._may_be_plain = True
        self.options = {**_compat.jit_arguments(fun), **(options or {})}
        unbound, self._bound = libraries.unbound(fun)
        arguments = shifted(self.options, len(self._bound))
        if self._bound:
            arguments = {
                **_compat.jit_arguments(unbound),
                **shifted(options or {}, len(self._bound)),
            }
            self._kept_alive = unbound  # a partial of it has no other owner
            self._may_be_plain = False
        compiler_options = _compat.compiler_options(unbound)
        if compiler_options:  # JAX accepts them at the outermost jit only, which is this one
            unbound, arguments["compiler_options"] = unbound.__wrapped__, compiler_options
        self._unbound = weak_reference(unbound)
        self._unbound_options = arguments
        arguments = shifted(arguments, hidden)
        self._jitted = jax.jit(named_like(self._traced, unbound, hidden), inline=True, **arguments)
        self._jitted_parts = jax.jit(self._from_parts, inline=True, static_argnums=0)

    @functools.cached_property
    def _on_states(self) -> Program:
        """The program of the same function on states instead of objects of ``flax.nnx``."""
        fun = libraries.pure(self._unbound, tag=self)
        fun.__name__ = fun.__qualname__ = name_of(self._unbound())
        self._pure = fun  # programs hold their functions weakly
        options, scope = self._unbound_options, self._scope
        program = Program(fun, self._evaluate, self._hidden, options, scope)
        program._may_be_plain = False
        return program

    # -- calls ------------------------------------------------------------------------------------

    def __call__(self, args: tuple, kwargs: dict[str, Any], *hidden: Any) -> tuple[Any, Any]:
        """Return the output of the function, and what the transformation adds."""
        if self._is_plain and not _compat.under_jit():
            try:
                result = self._jitted(*hidden, *args, **kwargs)
            except Exception as error:
                self._raise_unless_not_plain(error, args, kwargs)
            else:
                return unwrap_outputs(self._waited(result) if self._calls_back else result)
        return self._inspect_and_call(args, kwargs, hidden)

    def as_function(self, finish: Callable[[Any], Any]) -> Callable[..., tuple[Any, Any]]:
        """Return a function of the arguments that calls a program without hidden values.

        ``finish`` is applied to what the transformation adds. Every line counts here: this is all
        that most calls do beside ``jax.jit``, which takes about ten microseconds.
        """
        jitted, context, evaluates = self._jitted, _compat.trace_context, _compat.EvalTrace

        def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if self._is_plain and type(context.trace) is evaluates:
                try:
                    result = jitted(*args, **kwargs)
                except Exception as error:
                    self._raise_unless_not_plain(error, args, kwargs)
                else:
                    if self._calls_back:
                        self._waited(result)
                    (mark, out), more = result
                    return out if mark is None else unwrap_outputs(result)[0], finish(more)
            out, more = self._inspect_and_call(args, kwargs, ())
            return out, finish(more)

        return call

    def declared_static(self, args: tuple, kwargs: dict[str, Any]) -> list[int]:
        """Return the positions of all leaves of the arguments that ``options`` declare static."""
        return declared_static(self.fun(), self.options, args, kwargs)

    def _raise_unless_not_plain(self, error: Exception, args: tuple, kwargs: dict) -> None:
        """Raise an error of the program; one caused by the kind of arguments makes it not plain."""
        leaves = jax.tree.leaves((args, kwargs))
        if not isinstance(error, _NotPlainError) and (
            not isinstance(error, TypeError) or all(map(_compat.is_jax_value, leaves))
        ):
            with libraries.equinox_errors():
                raise error
        self._is_plain = self._may_be_plain = False

    # `logdict` knows this method by its name, see `_compat.flattened_for`.
    def _inspect_and_call(
        self, args: tuple, kwargs: dict[str, Any], hidden: tuple
    ) -> tuple[Any, Any]:
        """Inspect the arguments for kinds that JAX treats unlike their library, then call."""
        args = (*self._bound, *args)
        leaves, tree = jax.tree.flatten((args, kwargs))
        if self._may_be_plain and not libraries.is_plain(self._unbound(), (args, kwargs), leaves):
            self._may_be_plain = False
        if libraries.holds_state((args, kwargs), tree):
            call = functools.partial(self._on_states._call, hidden=hidden)
            return libraries.call_with_state(call, args, kwargs, tag=self)
        return self._run(args, kwargs, hidden, leaves, tree)

    def _call(self, args: tuple, kwargs: dict[str, Any], hidden: tuple) -> tuple[Any, Any]:
        return self._run(args, kwargs, hidden, *jax.tree.flatten((args, kwargs)))

    def _run(
        self, args: tuple, kwargs: dict[str, Any], hidden: tuple, leaves: list[Any], tree: Any
    ) -> tuple[Any, Any]:
        if _compat.under_jit():
            return unwrap_outputs(self._trace(hidden, args, kwargs, inline=True))
        return unwrap_outputs(self._compiled(args, kwargs, hidden, leaves, tree))

    def _compiled(
        self, args: tuple, kwargs: dict[str, Any], hidden: tuple, leaves: list[Any], tree: Any
    ) -> Any:
        static = libraries.static_scalars(self._unbound(), (args, kwargs), tree, leaves)
        if not static:
            try:
                result = self._checked(self._jitted, *hidden, *args, **kwargs)
            except TypeError:
                if all(map(_compat.is_jax_value, leaves)):
                    raise
            else:
                self._is_plain = self._may_be_plain
                return result
        # Outside of the except block, so that an error from here is not chained to that one.
        self._may_be_plain = False
        declared = declared_static(self._unbound(), self._unbound_options, args, kwargs)
        return self._checked(
            self._jitted_parts, *partition(leaves, tree, (*static, *declared)), hidden
        )

    def _checked(self, jitted: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call, and raise the errors of equinox as its own."""
        with libraries.equinox_errors():
            result = jitted(*args, **kwargs)
        return self._waited(result) if self._calls_back else result

    @staticmethod
    def _waited(result: Any) -> Any:
        """Wait for the callbacks that may raise, then return the result."""
        with libraries.equinox_errors():
            return jax.block_until_ready(result) if _compat.not_tracing() else result

    # -- tracing ----------------------------------------------------------------------------------

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """Trace, as the function of hidden values and arguments that ``jax.jit`` compiles."""
        hidden, args = args[: self._hidden], args[self._hidden :]
        if self._may_be_plain:
            leaves = jax.tree.leaves((args, kwargs))
            if not libraries.is_plain(self._unbound(), (args, kwargs), leaves):
                raise _NotPlainError
        return self._trace(hidden, args, kwargs)

    def _from_parts(self, static: StaticPart, values: list[Any], hidden: tuple) -> Any:
        args, kwargs = static.join(values)
        return self._trace(hidden, args, kwargs)

    def _trace(
        self, hidden: tuple, args: tuple, kwargs: dict[str, Any], inline: bool = False
    ) -> Any:
        """Trace the function with its logs, and evaluate the result in the current trace.

        Outputs are arrays, as those of ``jax.jit`` are, except for what cannot be one and for
        static Python scalars: all of them where nothing is compiled (``inline``).
        """
        _check_settings()
        fun, (leaves, tree) = self._unbound(), jax.tree.flatten((args, kwargs))
        dynamic = [i for i, leaf in enumerate(leaves) if _compat.is_tracer(leaf)]
        structure: list[tuple[Any, list[Any]]] = []

        def flat(*values: Any) -> list[Any]:
            full = list(leaves)
            for i, value in zip(dynamic, values, strict=True):
                full[i] = value
            args, kwargs = jax.tree.unflatten(tree, full)
            with _explain_static_arguments():
                result = fun(*args, **kwargs)
            outs, out_tree = jax.tree.flatten(result)
            static = libraries.static_scalars(fun, result, out_tree, outs)
            is_array = [
                _compat.is_jax_value(out)
                and i not in static
                and not (inline and type(out) in libraries.SCALARS)
                for i, out in enumerate(outs)
            ]
            # Tracers must not be kept: they are invalid after this trace.
            pairs = list(zip(outs, is_array, strict=True))
            wrapped = [None if array else NonArrayLeaf(out) for out, array in pairs]
            structure.append((out_tree, wrapped))
            return [out for out, array in pairs if array]

        open_known()
        values = [leaves[i] for i in dynamic]
        avals = [_compat.typeof(value) for value in values]
        # With `jax.disable_jit()`, while_loop would first try its condition, which may log.
        with self._scope(), jax.disable_jit(False):
            closed = _compat.trace_flat(flat, avals, name_of(fun))
        self._calls_back = self._calls_back or libraries.may_raise(closed)
        outs, more = self._evaluate(closed, values, hidden)
        out_tree, wrapped = structure[0]
        return restore_outputs(out_tree, wrapped, outs), more


def _check_settings() -> None:
    """Raise if a setting of JAX is on under which logs would be counted wrongly."""
    if on := _compat.unsupported_settings():
        raise UnsupportedJaxError(
            f"The experimental setting {on[0]} of JAX is on. It changes how JAX differentiates, in "
            "a way that sawlog does not support: logs could be counted twice. Hint: "
            f"jax.config.update({on[0]!r}, False)"
        )


@contextlib.contextmanager
def _explain_static_arguments() -> Iterator[None]:
    """Add a hint to JAX's error for a traced value where a function needs a static one."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if "Non-hashable static arguments" not in text or "Tracer" not in text:
            raise
        raise ArgumentError(
            "A jitted or mapped function inside declares an argument as static, and sawlog traced "
            "that argument because nothing declared it as static here. Hint: declare it as for "
            "jax.jit: sawlog.spool(f, static_argnums=...) or static_argnames=..."
        ) from error


_tables: dict[int, tuple[Any, dict[Any, Program]]] = {}


def program_for(fun: Callable[..., Any], options: Any, make: Callable[[], Program]) -> Program:
    """Return the program of ``fun`` for these options; ``make`` it at the first request.

    Functions are compared by identity. A bound method is a new object at each attribute access, and
    the object it is bound to may have changed since, so like ``jax.jit`` this caches none.
    """
    if inspect.ismethod(fun):
        return make()
    key = id(fun)
    if key not in _tables:
        try:
            _tables[key] = (weakref.ref(fun, lambda _: _tables.pop(key, None)), {})
        except TypeError:  # no weak references
            return make()
    programs = _tables[key][1]
    if options not in programs:
        programs[options] = make()
    return programs[options]
