"""Objects of flax and equinox among arguments and in programs, which JAX treats in its own way.

No library is imported from here. A library that the program has not imported has no objects in it,
so each is looked up in ``sys.modules``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.jax import _compat

SCALARS = (bool, int, float, complex)


def loaded(name: str) -> Any:
    """Return a module if the program has imported it, otherwise None."""
    return sys.modules.get(name)


def is_plain(fun: Any, arguments: Any, leaves: Sequence[Any]) -> bool:
    """Return whether ``jax.jit`` treats these arguments of ``fun`` as their libraries do.

    The answer is the same for arguments and for the tracers of them: a scalar that may be a Python
    number counts as one.
    """
    nnx, equinox = loaded("flax.nnx"), loaded("equinox")
    if nnx is not None and _any_state(nnx, arguments):
        return False
    if equinox is None or not any(map(_like_python_scalar, leaves)):
        return True
    places = _static_places(equinox, fun, arguments, leaves)
    return not any(_like_python_scalar(leaves[i]) for place in places for i in place)


def _like_python_scalar(leaf: Any) -> bool:
    if not _compat.is_jax_value(leaf):
        return False
    aval = _compat.typeof(leaf)
    is_bool = getattr(aval, "dtype", None) == np.bool_
    return getattr(aval, "shape", None) == () and (is_bool or getattr(aval, "weak_type", False))


_CACHE_SIZE = 1024
_cache: dict[tuple[str, Any], Any] = {}


def _cached(what: str, tree: Any, find: Callable[[], Any]) -> Any:
    """Return ``find()``, cached by the structure of the arguments."""
    try:
        return _cache[what, tree]
    except KeyError:
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        found = _cache[what, tree] = find()
        return found
    except TypeError:  # a structure that is not hashable
        return find()


# -- flax linen ------------------------------------------------------------------------------------


def only_probing() -> bool:
    """Return whether the active trace only inspects a function, and will not run.

    ``flax.linen.scan`` traces its body one more time than it runs it, to find out which variables
    are the same in every iteration. A log in that trace must not count.
    """
    if loaded("flax.core.axes_scan") is None:
        return False
    frame: Any = sys._getframe(1)
    while frame is not None:
        if (
            frame.f_code.co_name == "body_fn"
            and frame.f_globals.get("__name__") == "flax.core.axes_scan"
            and frame.f_locals.get("init_mode")
        ):
            return True
        frame = frame.f_back
    return False


# -- flax nnx --------------------------------------------------------------------------------------


def holds_state(arguments: Any, tree: Any) -> bool:
    """Return whether ``arguments``, whose structure is ``tree``, contain objects of ``flax.nnx``.

    A function may mutate such an object, and its caller sees the change.
    """
    nnx = loaded("flax.nnx")
    if nnx is None:
        return False

    return bool(_cached("state", tree, lambda: _any_state(nnx, arguments)))


def _any_state(nnx: Any, arguments: Any) -> bool:
    parts = jax.tree.leaves(arguments, is_leaf=lambda x: is_state(nnx, x))
    return any(is_state(nnx, part) for part in parts)


def is_state(nnx: Any, x: Any) -> bool:
    """Return whether ``x`` is an object of ``flax.nnx`` that holds arrays."""
    return isinstance(x, nnx.Variable) or bool(nnx.graph.is_graph_node(x))


def unbound(fun: Any) -> tuple[Any, tuple]:
    """Split a callable that is bound to objects of ``flax.nnx`` into function and bound arguments.

    A method of a module may mutate the module, like a function that takes it as an argument. Any
    other callable is returned unchanged, with no bound arguments.
    """
    nnx = loaded("flax.nnx")
    if nnx is None:
        return fun, ()
    if isinstance(fun, types.MethodType) and is_state(nnx, fun.__self__):
        return fun.__func__, (fun.__self__,)
    if isinstance(fun, functools.partial) and any(
        is_state(nnx, part)
        for part in jax.tree.leaves(fun.args, is_leaf=lambda x: is_state(nnx, x))
    ):
        rest = functools.partial(fun.func, **fun.keywords) if fun.keywords else fun.func
        return rest, fun.args
    if is_state(nnx, fun):
        return type(fun).__call__, (fun,)
    return fun, ()


def pure(fun: Callable[[], Any], tag: Any) -> Callable[..., Any]:
    """Return the function ``fun()`` on states instead of objects of ``flax.nnx``.

    It returns the final states of its arguments together with the output.
    """

    def on_states(*args: Any, **kwargs: Any) -> Any:
        nnx = loaded("flax.nnx")
        args, kwargs = _joined(nnx, (args, kwargs), tag, inner=True)
        out = fun()(*args, **kwargs)
        changed = jax.tree.map(
            lambda x: x if is_state(nnx, x) else None,
            (args, kwargs),
            is_leaf=lambda x: is_state(nnx, x),
        )
        return _split(nnx, (changed, out), tag)

    return on_states


def call_with_state(
    call: Callable[[tuple, dict[str, Any]], tuple[Any, Any]],
    args: tuple,
    kwargs: dict[str, Any],
    tag: Any,
) -> tuple[Any, Any]:
    """Call a function made by :func:`pure`, and update the caller's objects in place."""
    nnx = loaded("flax.nnx")
    with nnx.update_context(tag):
        states, named = _split(nnx, (args, kwargs), tag)
        after, more = call(states, named)
        _, out = _joined(nnx, after, tag, inner=False)
    return out, more


# As in `nnx.jit`: leaves are what the variables hold. By default they are the variables, and those
# that hold references (`nnx.var_defaults(ref=True)`) are copied, so changes would not arrive.


def _split(nnx: Any, objects: Any, tag: Any) -> Any:
    def split(context: Any, path: Any, prefix: Any, node: Any) -> Any:
        return nnx.NodeStates.from_split(*context.flatten(node, with_paths=False))

    return nnx.to_tree(objects, split_fn=split, ctxtag=tag)


def _joined(nnx: Any, states: Any, tag: Any, inner: bool) -> Any:
    def merge(context: Any, path: Any, prefix: Any, leaf: Any) -> Any:
        return context.unflatten(leaf.graphdef, *leaf.states)

    return nnx.from_tree(states, merge_fn=merge, ctxtag=tag, is_inner=inner)


# -- equinox ---------------------------------------------------------------------------------------


def static_scalars(fun: Any, arguments: Any, tree: Any, leaves: Sequence[Any]) -> tuple[int, ...]:
    """Return the positions of leaves that are Python scalars and static in equinox.

    These are the scalars inside its modules, such as ``Dropout.inference``, and all of them for a
    function made by ``equinox.filter_jit``.
    """
    equinox = loaded("equinox")
    if equinox is None or not any(type(leaf) in SCALARS for leaf in leaves):
        return ()
    places: Sequence[range] = _cached(
        "modules of filter_jit" if _is_filter_jit(fun) else "modules",
        tree,
        lambda: _static_places(equinox, fun, arguments, leaves),
    )
    return tuple(i for place in places for i in place if type(leaves[i]) in SCALARS)


def _static_places(
    equinox: Any, fun: Any, arguments: Any, leaves: Sequence[Any]
) -> tuple[range, ...]:
    """Return the ranges of leaves in which Python scalars are static."""
    if _is_filter_jit(fun):
        return (range(len(leaves)),)
    module, places, start = equinox.Module, [], 0
    for item in jax.tree.leaves(arguments, is_leaf=lambda x: isinstance(x, module)):
        end = start + len(jax.tree.leaves(item))
        if isinstance(item, module):
            places.append(range(start, end))
        start = end
    return tuple(places)


def _is_filter_jit(fun: Any) -> bool:
    return type(fun).__module__ == "equinox._jit"


def may_raise(closed: Any) -> bool:
    """Return whether a program may contain ``equinox.error_if``, which raises in a callback."""
    return loaded("equinox") is not None and any(
        eqn.primitive.name == "pure_callback"
        or any(may_raise(inner) for inner in _compat.subjaxprs(eqn.params))
        for eqn in getattr(closed, "jaxpr", closed).eqns
    )


_EQUINOX_ERROR = "_EquinoxRuntimeError: "


@contextlib.contextmanager
def equinox_errors() -> Iterator[None]:
    """Raise errors of ``equinox.error_if`` as equinox does, without the wrapping by JAX."""
    equinox = loaded("equinox")
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        _, found, message = str(error).partition(_EQUINOX_ERROR)
        if equinox is None or not found:
            raise
        own = equinox.EquinoxRuntimeError(message.partition("\n\n")[0].strip())
    else:
        return
    raise own from None
