"""Primitives with a Python function inside, which JAX traces only when the program is lowered.

Most higher-order primitives have jaxprs as parameters. Some have a function: ``noinline`` of
equinox, ``linear_solve`` of lineax, the ``HiPrim`` of newer JAX. While logs are recorded, those
three are *opened* where they are bound: if the function logs, it is traced into the program instead
of the primitive, and keeps the derivative of the primitive. In all others a log is an error, see
:mod:`~sawlog.jax._core.lowering_marks`.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from sawlog.errors import UnsupportedPrimitiveError
from sawlog.jax import _compat
from sawlog.jax._core import arrays, libraries, lowering_marks
from sawlog.jax._core.autodiff import jvp_with_symbolic_zeros
from sawlog.jax._core.primitive import has_site_effect, is_listening, not_listening

# -- primitives that are opened --------------------------------------------------------------------

Inside = Callable[[Any, dict[str, Any]], Callable[..., Any]]
"""``inside(primitive, params)`` returns the primitive as a function of its operands."""


def _implementation(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    return functools.partial(primitive.impl, **params)


def _linear_solve(primitive: Any, params: dict[str, Any]) -> Callable[..., Any]:
    """Skip the check of ``impl`` for leaked tracers, which raises an error under ``vmap``."""
    solve, equinox = libraries.loaded("lineax._solve"), libraries.loaded("equinox.internal")
    implementation = getattr(solve, "_linear_solve_impl", None)
    if implementation is None:
        return _implementation(primitive, params)
    unchecked = functools.partial(implementation, check_closure=False)
    return functools.partial(equinox.filter_primitive_def(unchecked), **params)


#: Primitives of libraries that compute what an ordinary function of JAX arrays computes.
_KNOWN: tuple[tuple[str, str, Inside], ...] = (
    ("equinox.internal._noinline", "noinline_p", _implementation),
    ("lineax._solve", "linear_solve_p", _linear_solve),
)
_opened: weakref.WeakSet[Any] = weakref.WeakSet()


def open_known() -> None:
    """Open the known primitives of all libraries that are imported by now."""
    for module, name, inside in _KNOWN:
        primitive = getattr(libraries.loaded(module), name, None)
        if primitive is not None and primitive not in _opened:
            _opened.add(primitive)
            _open(primitive, inside)


def _open(primitive: Any, inside: Inside, own_rules: bool = False) -> None:
    """Trace the function of a primitive into the program instead of the primitive, if it logs.

    That happens where the primitive is bound, before any transformation processes it. With
    ``own_rules`` its differentiation rules may log: they run where they would without logs.
    """

    def instead(operands: Sequence[Any], params: dict[str, Any], differentiated: bool) -> Any:
        if not is_listening() or lowering_marks.drops() or (own_rules and differentiated):
            return None
        if not all(map(_compat.is_array, (*operands, *_compat.hi_primitive_types(params)))):
            return None  # values of other types are known when the program is lowered
        constants = [None if _compat.is_tracer(x) else x for x in operands]
        values = [x for x in operands if _compat.is_tracer(x)]
        fun = inside(primitive, params)
        # The outputs have the derivative of the primitive. Logged values have none: the function
        # inside may not be differentiable.
        closed = _compat.trace_flat(
            lambda *values: fun(*_filled(constants, map(jax.lax.stop_gradient, values))),
            [_compat.typeof(value) for value in values],
            primitive.name,
        )
        if not has_site_effect(closed.effects) and not _holds_logs(params):
            return None

        def plain(*values: Any) -> Any:
            return primitive.bind(*_filled(constants, values), **params)

        if _compat.inside_custom_jvp_rule() and not own_rules:
            # Reverse mode may transpose it, which only the primitive can do.
            jaxpr_as_fun(closed)(*map(jax.lax.stop_gradient, values))  # for its logs
            with not_listening(), lowering_marks.dropping():
                return plain(*values)
        if own_rules:
            return _with_own_rules(closed, plain, _compat.differentiates_backwards(params))(*values)
        return _with_own_derivative(closed, plain)(*values)

    _compat.replace_where_bound(primitive, instead)


def _holds_logs(params: dict[str, Any]) -> bool:
    """Return whether any jaxpr among the parameters logs; a solver need not evaluate it again."""
    return any(has_site_effect(inner.effects) for inner in _compat.subjaxprs(params))


def _filled(constants: Sequence[Any], values: Iterable[Any]) -> list[Any]:
    rest = iter(values)
    return [next(rest) if constant is None else constant for constant in constants]


def _with_own_derivative(closed: Any, plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that evaluates ``closed`` and has the derivative of ``plain``."""
    run = jax.custom_jvp(jaxpr_as_fun(closed))

    def silent(*values: Any) -> Any:
        with lowering_marks.dropping():
            return plain(*values)

    def jvp(primals: Any, tangents: Any) -> Any:
        if is_listening():
            jaxpr_as_fun(closed)(*primals)  # for its logs
        from sawlog.jax._core.silenced import Silenced  # which imports this module

        with not_listening():
            return Silenced(jvp_with_symbolic_zeros, silent, primals, tangents).evaluate()

    run.defjvp(jvp, symbolic_zeros=True)
    return run


def _with_own_rules(closed: Any, plain: Callable[..., Any], backwards: bool) -> Callable[..., Any]:
    """Return a function that evaluates ``closed``, and where it is differentiated, ``plain``."""
    if not backwards:
        run = jax.custom_jvp(jaxpr_as_fun(closed))
        run.defjvp(functools.partial(jvp_with_symbolic_zeros, plain), symbolic_zeros=True)
        return run

    pulled = jax.custom_vjp(jaxpr_as_fun(closed))
    pulled.defvjp(functools.partial(jax.vjp, plain), lambda pull, gradients: pull(gradients))
    return pulled


if _compat.call_hi_primitive_p is not None:
    _open(
        _compat.call_hi_primitive_p,
        lambda p, params: _compat.hi_primitive_function(params),
        own_rules=True,
    )

# -- primitives that are marked --------------------------------------------------------------------

#: Primitives whose functions are traced when bound or differentiated, or run on the host.
_HARMLESS = frozenset(
    {
        "custom_jvp_call",
        "custom_lin",
        "custom_vjp_call",
        "custom_vmap_call",
        "debug_callback",
        "io_callback",
        "pure_callback",
    }
)
_FUNCTIONS = (types.FunctionType, types.MethodType)
_PLAIN = (str, bytes, int, float, complex, type(None), type)


def hides_functions(eqn: Any, seen: dict[int, tuple[Any, bool]]) -> bool:
    """Return whether an equation, or one inside it, has a function that may be traced later.

    ``seen`` caches the answer by jaxpr.
    """
    if _hides_own_function(eqn):
        return True
    inside = (getattr(inner, "jaxpr", inner) for inner in _compat.subjaxprs(eqn.params))
    return any(_any_hides(jaxpr, seen) for jaxpr in inside)


def _hides_own_function(eqn: Any) -> bool:
    if eqn.primitive is _compat.call_hi_primitive_p:  # opened only among arrays
        return not all(_compat.is_array(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
    known = eqn.primitive.name in _HARMLESS or eqn.primitive in _opened
    return not known and any(map(_holds_function, eqn.params.values()))


def check_hidden_functions(eqn: Any) -> None:
    """Lower every equation that hides a function, alone: JAX lowers none whose result is unused.

    Call this under a mark, see :func:`~sawlog.jax._core.lowering_marks.listening_to`.

    Raises:
        UnsupportedPrimitiveError: such a function logs.
    """
    if _hides_own_function(eqn):
        try:
            types = [arrays.type_of(atom.aval) for atom in eqn.invars]
            with not_listening():
                jax.jit(lambda *values: _compat.bind_equation(eqn, values)).lower(*types)
        except UnsupportedPrimitiveError:
            raise
        except Exception:  # it needs its surroundings, such as the axes of a mesh
            return
    for inner in _compat.subjaxprs(eqn.params):
        for each in getattr(inner, "jaxpr", inner).eqns:
            if each.params:
                check_hidden_functions(each)


def _any_hides(jaxpr: Any, seen: dict[int, tuple[Any, bool]]) -> bool:
    known = seen.get(id(jaxpr))
    if known is None:
        found = any(eqn.params and hides_functions(eqn, seen) for eqn in jaxpr.eqns)
        known = seen[id(jaxpr)] = (jaxpr, found)
    return known[1]


def _holds_function(value: Any, depth: int = 4) -> bool:
    """Return whether a parameter contains a function that is not JAX's own, at any depth."""
    if isinstance(value, (*_PLAIN, _compat.Jaxpr, _compat.ClosedJaxpr)):
        return False
    if isinstance(value, functools.partial):
        return any(_holds_function(part, depth) for part in (value.func, *value.args))
    if isinstance(value, _FUNCTIONS):
        return not str(value.__module__).startswith(("jax.", "jaxlib."))
    return depth > 0 and any(_holds_function(part, depth - 1) for part in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list, set, frozenset)):
        yield from value
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, jax.tree_util.PyTreeDef):
        kind = value.node_data()
        yield from () if kind is None else (kind[1],)
        yield from value.children()
    elif not type(value).__module__.startswith(("jax", "numpy", "ml_dtypes")):
        yield from getattr(value, "__dict__", {}).values()
        if callable(value):
            yield type(value).__call__
