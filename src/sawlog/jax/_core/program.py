"""Calling a transformed function as ``jax.jit`` would: traced once for each signature, then cached.

``spool(f)(x)`` written twice must not trace twice, so the compiled side of a transformation is kept
in a table by function and options. The table holds functions weakly: it never keeps one alive.

Inside of a program that is being compiled there is nothing to compile: the function is called with
the very arguments that it was given, Python scalars and all.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from sawlog.errors import ArgumentError, UnsupportedJaxError
from sawlog.jax import _compat
from sawlog.jax._core import libraries as _libraries
from sawlog.jax._core.opaque_primitives import open_known
from sawlog.jax._core.primitive import listening

Evaluate = Callable[[Any, list[Any], Sequence[Any]], tuple[list[Any], Any]]


@jax.tree_util.register_static
class _Fixed:
    """Something that is no array; it goes through ``jit`` as part of the structure."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and self.value is other.value

    def __hash__(self) -> int:
        return hash(id(self.value))


class _NotPlain(Exception):
    """Arguments were traced that need a look first."""


class Program:
    """The compiled side of a transformation of one function.

    A program is *plain* while all arguments are such as ``jax.jit`` takes them rightly. A call is
    then one of ``jax.jit`` and nothing more. That an argument is of another kind shows when its
    signature is traced; from then on each call looks at its arguments first.

    ``evaluate(closed_jaxpr, args, hidden)`` gives the flat outputs and whatever comes with them;
    ``hidden`` are values of the transformation's own, given at each call. ``options`` are those of
    ``jax.jit`` that say which arguments are static.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        evaluate: Evaluate,
        hidden: int = 0,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.fun = _weakly(fun)
        self._evaluate = evaluate
        self._hidden = hidden
        self._calls_back = False
        self._is_plain = False
        self._may_be_plain = True
        self.options = {**_compat.jit_arguments(fun), **(options or {})}
        own, self._bound = _libraries.unbound(fun)
        arguments = _shifted(self.options, len(self._bound))
        if self._bound:
            arguments = {**_compat.jit_arguments(own), **_shifted(options or {}, len(self._bound))}
            self._held = own  # a partial of it has no other owner
            self._may_be_plain = False
        compiling = _compat.compiler_options(own)
        if compiling:  # JAX takes them at the outermost jit, which is this one
            own, arguments["compiler_options"] = own.__wrapped__, compiling
        self._fun = _weakly(own)
        self._own_options = arguments
        arguments = _shifted(arguments, hidden)
        self._jitted = jax.jit(_named_like(self._traced, own, hidden), inline=True, **arguments)
        self._jitted_parts = jax.jit(self._from_parts, inline=True, static_argnums=0)

    @functools.cached_property
    def _on_states(self) -> Program:
        """The same for a function on states in place of the objects of ``flax.nnx``."""
        fun = _libraries.pure(self._fun, tag=self)
        fun.__name__ = fun.__qualname__ = _name_of(self._fun())
        self._pure = fun  # programs hold their functions weakly
        program = Program(fun, self._evaluate, self._hidden, self._own_options)
        program._may_be_plain = False
        return program

    def __call__(self, args: tuple, kwargs: dict[str, Any], *hidden: Any) -> tuple[Any, Any]:
        """The output of the function, and what the transformation adds."""
        if self._is_plain and not _compat.under_jit():
            try:
                result = self._jitted(*hidden, *args, **kwargs)
            except Exception as error:
                self._raise_unless_not_plain(error, args, kwargs)
            else:
                return _unfixed(self._waited(result) if self._calls_back else result)
        return self._look_and_call(args, kwargs, hidden)

    def as_function(self, finish: Callable[[Any], Any]) -> Callable[..., tuple[Any, Any]]:
        """The same as a function of the arguments, for a program without hidden values.

        ``finish`` is done to what the transformation adds. Every line counts here: it is all that
        most calls do beside ``jax.jit``, which takes about ten microseconds.
        """
        jitted, context, evaluates = self._jitted, _compat.trace_context, _compat.Evaluates

        def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            if self._is_plain and type(context.trace) is evaluates:
                try:
                    result = jitted(*args, **kwargs)
                except Exception as error:
                    self._raise_unless_not_plain(error, args, kwargs)
                else:
                    if self._calls_back:
                        self._waited(result)
                    (kind, out), more = result
                    return out if kind is None else _unfixed(result)[0], finish(more)
            out, more = self._look_and_call(args, kwargs, ())
            return out, finish(more)

        return call

    def _raise_unless_not_plain(self, error: Exception, args: tuple, kwargs: dict) -> None:
        """Raise an error of the program; one that comes of the arguments makes it not plain."""
        leaves = jax.tree.leaves((args, kwargs))
        if not isinstance(error, _NotPlain) and (
            not isinstance(error, TypeError) or all(map(_compat.is_jax_value, leaves))
        ):
            with _libraries.equinox_errors():
                raise error
        self._is_plain = self._may_be_plain = False

    def _look_and_call(self, args: tuple, kwargs: dict[str, Any], hidden: tuple) -> tuple[Any, Any]:
        """Call, after a look for arguments that JAX alone does not treat as their library does."""
        args = (*self._bound, *args)
        leaves, tree = jax.tree.flatten((args, kwargs))
        if self._may_be_plain and not _libraries.is_plain(self._fun(), (args, kwargs), leaves):
            self._may_be_plain = False
        if _libraries.holds_state((args, kwargs), tree):
            call = functools.partial(self._on_states._call, hidden=hidden)
            return _libraries.call_with_state(call, args, kwargs, tag=self)
        return self._run(args, kwargs, hidden, leaves, tree)

    def _call(self, args: tuple, kwargs: dict[str, Any], hidden: tuple) -> tuple[Any, Any]:
        return self._run(args, kwargs, hidden, *jax.tree.flatten((args, kwargs)))

    def _run(
        self, args: tuple, kwargs: dict[str, Any], hidden: tuple, leaves: list[Any], tree: Any
    ) -> tuple[Any, Any]:
        if _compat.under_jit():
            return _unfixed(self._trace(hidden, args, kwargs, inline=True))
        return _unfixed(self._compiled(args, kwargs, hidden, leaves, tree))

    def _compiled(
        self, args: tuple, kwargs: dict[str, Any], hidden: tuple, leaves: list[Any], tree: Any
    ) -> Any:
        static = _libraries.static_scalars(self._fun(), (args, kwargs), tree, leaves)
        if not static:
            try:
                result = self._checked(self._jitted, *hidden, *args, **kwargs)
            except TypeError:
                if all(map(_compat.is_jax_value, leaves)):
                    raise
            else:
                self._is_plain = self._may_be_plain
                return result
        # out of the except block, so that an error from here stands for itself
        self._may_be_plain = False
        static = (*static, *_declared_static(self._fun(), self._own_options, args, kwargs))
        return self._checked(self._jitted_parts, *_partition(leaves, tree, static), hidden)

    def declared_static(self, args: tuple, kwargs: dict[str, Any]) -> list[int]:
        """The places of all leaves of the arguments that ``options`` declare as static."""
        return _declared_static(self.fun(), self.options, args, kwargs)

    def _checked(self, jitted: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call, and raise the errors of equinox as its own."""
        with _libraries.equinox_errors():
            result = jitted(*args, **kwargs)
        return self._waited(result) if self._calls_back else result

    @staticmethod
    def _waited(result: Any) -> Any:
        """The result, once what it calls back to raise has run."""
        with _libraries.equinox_errors():
            return jax.block_until_ready(result) if _compat.not_tracing() else result

    def _traced(self, *args: Any, **kwargs: Any) -> Any:
        """What is compiled: a function of the hidden values and the arguments."""
        hidden, args = args[: self._hidden], args[self._hidden :]
        if self._may_be_plain:
            leaves = jax.tree.leaves((args, kwargs))
            if not _libraries.is_plain(self._fun(), (args, kwargs), leaves):
                raise _NotPlain
        return self._trace(hidden, args, kwargs)

    def _trace(
        self, hidden: tuple, args: tuple, kwargs: dict[str, Any], inline: bool = False
    ) -> Any:
        """Trace the function with its logs, and evaluate the result in the trace around.

        Outputs are arrays as those of ``jax.jit`` are, but for what cannot be, and for Python
        scalars that are static: all of them where nothing is compiled (``inline``).
        """
        _check_settings()
        fun, (leaves, tree) = self._fun(), jax.tree.flatten((args, kwargs))
        dynamic = [i for i, leaf in enumerate(leaves) if _compat.is_tracer(leaf)]
        structure: list[tuple[Any, list[Any]]] = []

        def flat(*values: Any) -> list[Any]:
            full = list(leaves)
            for i, value in zip(dynamic, values, strict=True):
                full[i] = value
            args, kwargs = jax.tree.unflatten(tree, full)
            with _explaining_static():
                result = fun(*args, **kwargs)
            outs, out_tree = jax.tree.flatten(result)
            fixed = _libraries.static_scalars(fun, result, out_tree, outs)
            is_array = [
                _compat.is_jax_value(out)
                and i not in fixed
                and not (inline and type(out) in _libraries.SCALARS)
                for i, out in enumerate(outs)
            ]
            # What is kept of the outputs must not be tracers, which are gone after this trace.
            pairs = list(zip(outs, is_array, strict=True))
            structure.append((out_tree, [None if array else _Fixed(out) for out, array in pairs]))
            return [out for out, array in pairs if array]

        open_known()
        values = [leaves[i] for i in dynamic]
        avals = [_compat.typeof(value) for value in values]
        with listening():
            closed = _compat.trace_flat(flat, avals, _name_of(fun))
        self._calls_back = self._calls_back or _libraries.may_raise(closed)
        outs, more = self._evaluate(closed, values, hidden)
        out_tree, rest = structure[0]
        return _restore(out_tree, rest, outs), more

    def _from_parts(self, fixed: _Parts, values: list[Any], hidden: tuple) -> Any:
        args, kwargs = fixed.join(values)
        return self._trace(hidden, args, kwargs)


def _shifted(options: dict[str, Any], count: int) -> dict[str, Any]:
    """The options of ``jax.jit`` where so many arguments stand in front."""
    moved = dict(options)
    for name in ("static_argnums", "donate_argnums"):
        if name in moved:
            moved[name] = tuple(i + count if i >= 0 else i for i in moved[name])
    return moved


def _declared_static(
    fun: Any, options: dict[str, Any], args: tuple, kwargs: dict[str, Any]
) -> list[int]:
    count = len(args)
    given = options.get("static_argnums", ())
    numbers = {i % count for i in given if -count <= i < count}
    names = set(options.get("static_argnames", ()))
    with contextlib.suppress(TypeError, ValueError):
        numbers |= {i for i, n in enumerate(inspect.signature(fun).parameters) if n in names}
    marked = (
        tuple(jax.tree.map(lambda _, i=i: i in numbers, arg) for i, arg in enumerate(args)),
        {name: jax.tree.map(lambda _, n=name: n in names, x) for name, x in kwargs.items()},
    )
    return [i for i, static in enumerate(jax.tree.leaves(marked)) if static]


def _check_settings() -> None:
    """Refuse settings of JAX under which logs would be counted wrongly."""
    if on := _compat.untried_settings():
        raise UnsupportedJaxError(
            f"The experimental setting {on[0]} of JAX is on, and with it JAX differentiates in a "
            "way that sawlog does not know: logs could be counted twice. Hint: "
            f"jax.config.update({on[0]!r}, False)"
        )


@contextlib.contextmanager
def _explaining_static() -> Iterator[None]:
    """Say what to do where a function that is called takes a traced value as static."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if "Non-hashable static arguments" not in text or "Tracer" not in text:
            raise
        raise ArgumentError(
            "A jitted or mapped function inside takes an argument as static, which sawlog "
            "traced: it could not tell that it is. Hint: say so, as for jax.jit: "
            "sawlog.spool(f, static_argnums=...) or static_argnames=..."
        ) from error


class _Parts:
    """The part of some arguments that is not arrays: hashable, and static for ``jit``."""

    def __init__(self, tree: Any, places: dict[int, Any]) -> None:
        self._tree, self._places = tree, places
        # True, 1 and 1.0 are equal, and 0.0 and -0.0, yet a program for one is none for the other
        self._key = (tree, tuple((i, type(x), _exactly(x)) for i, x in places.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parts) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def join(self, values: list[Any]) -> Any:
        rest = iter(values)
        count = self._tree.num_leaves
        leaves = [self._places[i] if i in self._places else next(rest) for i in range(count)]
        return jax.tree.unflatten(self._tree, leaves)


def _exactly(value: Any) -> Any:
    return repr(value) if isinstance(value, (float, complex)) else value


def _partition(
    leaves: list[Any], tree: Any, static: Sequence[int] = ()
) -> tuple[_Parts, list[Any]]:
    places: dict[int, Any] = {}
    for i, leaf in enumerate(leaves):
        if _compat.is_jax_value(leaf) and i not in static:
            continue
        try:
            hash(leaf)
        except TypeError:
            path = _path_of(tree, i)
            raise ArgumentError(
                f"The argument at {path} is of type {type(leaf).__name__}, which is neither "
                "something JAX can trace nor hashable. Hint: close over it, or pass arrays."
            ) from None
        places[i] = leaf
    return _Parts(tree, places), [leaf for i, leaf in enumerate(leaves) if i not in places]


def _path_of(tree: Any, position: int) -> str:
    """Where an argument stands in the call: ``args[1]['u']``."""
    marked = jax.tree.unflatten(tree, range(tree.num_leaves))
    (which, *path), _ = jax.tree_util.tree_flatten_with_path(marked)[0][position]
    return ("args", "kwargs")[which.idx] + jax.tree_util.keystr(tuple(path))


def _restore(tree: Any, fixed: list[Any], outs: list[Any]) -> tuple[Any, Any]:
    """The outputs as the function gave them; a mark, when some are no arrays and were wrapped."""
    rest = iter(outs)
    leaves = [next(rest) if x is None else x for x in fixed]
    mark = None if all(x is None for x in fixed) else ()
    return mark, jax.tree.unflatten(tree, leaves)


def _unfixed(result: Any) -> tuple[Any, Any]:
    (kind, out), more = result
    return (out if kind is None else jax.tree.map(_unfix, out, is_leaf=_is_fixed)), more


def _is_fixed(leaf: Any) -> bool:
    return isinstance(leaf, _Fixed)


def _unfix(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, _Fixed) else leaf


def _weakly(fun: Callable[..., Any]) -> Callable[[], Any]:
    try:
        return weakref.WeakMethod(fun) if inspect.ismethod(fun) else weakref.ref(fun)
    except TypeError:
        return lambda: fun


def _name_of(fun: Any) -> str:
    return getattr(fun, "__name__", None) or type(fun).__name__


def _named_like(body: Callable[..., Any], fun: Any, hidden: int) -> Callable[..., Any]:
    """A function that looks like ``fun`` to JAX, without holding it."""

    def named(*args: Any, **kwargs: Any) -> Any:
        return body(*args, **kwargs)

    named.__name__ = named.__qualname__ = _name_of(fun)
    with contextlib.suppress(TypeError, ValueError):
        signature = inspect.signature(fun)
        more = [
            inspect.Parameter(f"_sawlog{i}", inspect.Parameter.POSITIONAL_ONLY)
            for i in range(hidden)
        ]
        signature = signature.replace(parameters=[*more, *signature.parameters.values()])
        named.__signature__ = signature  # type: ignore[attr-defined]
    return named


def jit_options(static_argnums: Any, static_argnames: Any) -> dict[str, tuple]:
    """The options of ``jax.jit`` that say which arguments are static, as tuples.

    Raises:
        ArgumentError: they are no whole numbers, or no strings.
    """
    options: dict[str, tuple] = {}
    for name, value, kind in (
        ("static_argnums", static_argnums, int),
        ("static_argnames", static_argnames, str),
    ):
        if value is None:
            continue
        several = (value,) if isinstance(value, kind) else tuple(value)
        if not all(isinstance(each, kind) for each in several):
            what = "integers" if kind is int else "strings"
            raise ArgumentError(f"{name} must be {what}, as for jax.jit, got {value!r}.")
        options[name] = several
    return options


class Transformed:
    """A function that looks like ``fun`` and does ``call``, with what ``jax.jit`` gives besides.

    ``lower``, ``trace`` and ``eval_shape`` are methods, and nothing of this class is in its
    ``__dict__``: ``jax.vmap(spool(f))`` copies that, and is not to lower like ``spool(f)``.
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
        return f"<sawlog function {_name_of(self)}>"

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Trace and lower for these arguments, as ``jax.jit(f).lower``."""
        new_args, new_kwargs = self._prepared(args, kwargs)
        lowered = self._jitted().lower(*new_args, **new_kwargs)
        return lowered if new_args is args else _Prepared(lowered, self._prepared)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Trace for these arguments, as ``jax.jit(f).trace``."""
        args, kwargs = self._prepared(args, kwargs)
        return self._jitted().trace(*args, **kwargs)

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of what would be returned, as ``jax.jit(f).eval_shape``."""
        args, kwargs = self._prepared(args, kwargs)
        return self._jitted().eval_shape(*args, **kwargs)

    def _prepared(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Arguments in which what is static is part of the structure, but for what is declared."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        static = {
            *_libraries.static_scalars(self._program.fun(), (args, kwargs), tree, leaves),
            *(i for i, leaf in enumerate(leaves) if not _compat.is_jax_value(leaf)),
        }
        static.difference_update(self._program.declared_static(args, kwargs))
        for i in static:
            leaves[i] = _Static(leaves[i])
        return jax.tree.unflatten(tree, leaves) if static else (args, kwargs)

    def _jitted(self) -> Any:
        def body(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = jax.tree.map(_unfix, (args, kwargs), is_leaf=_is_fixed)
            return self._call(*args, **kwargs)

        return jax.jit(_named_like(body, self._program.fun(), 0), **self._program.options)


class _Prepared:
    """What JAX lowered or compiled for prepared arguments, to be called with those of the user."""

    def __init__(self, own: Any, prepare: Callable[..., Any]) -> None:
        self._own = own
        self._prepare = prepare

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def compile(self, *args: Any, **kwargs: Any) -> _Prepared:
        """As ``jax.stages.Lowered.compile``."""
        return _Prepared(self._own.compile(*args, **kwargs), self._prepare)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._prepare(args, kwargs)
        return self._own(*args, **kwargs)


@jax.tree_util.register_static
class _Static(_Fixed):
    """A static argument: equal to another one of the same type and value."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[type, Any]:
        return type(self.value), _exactly(self.value)


_tables: dict[int, tuple[Any, dict[Any, Program]]] = {}


def program_for(fun: Callable[..., Any], options: Any, make: Callable[[], Program]) -> Program:
    """The program of ``fun`` for these options, made at the first request.

    Functions are told apart by identity. A bound method is a new object each time it is named, and
    what it is bound to may have changed since, so like ``jax.jit`` this remembers none.
    """
    if inspect.ismethod(fun):
        return make()
    key = id(fun)
    if key not in _tables:
        try:
            _tables[key] = (weakref.ref(fun, lambda _: _tables.pop(key, None)), {})
        except TypeError:  # cannot be held weakly
            return make()
    programs = _tables[key][1]
    if options not in programs:
        programs[options] = make()
    return programs[options]


def check_callable(fun: Any, name: str) -> None:
    """Refuse what is not a function.

    Raises:
        ArgumentError: naming what was given.
    """
    if not callable(fun):
        usage = f"{name}(f)(x), not {name}(f(x))"
        if name == "callback":
            usage = "tap(f, callback)(x), where callback(logs) takes a logdict"
        raise ArgumentError(f"{name} must be a function, got {type(fun).__name__}. Hint: {usage}.")
