"""What libraries put into programs that JAX alone does not know: flax modules, equinox modules.

None of them is ever imported from here. A library that the program did not load has no objects in
it, so each is looked up in ``sys.modules``.
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
    """A module that the program has imported; None if it has not."""
    return sys.modules.get(name)


def is_plain(fun: Any, arguments: Any, leaves: Sequence[Any]) -> bool:
    """Whether ``jax.jit`` treats these arguments of ``fun`` as the libraries want it.

    The answer is the same for arguments and for the tracers that stand for them: a scalar that may
    be a Python number counts as one.
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


_REMEMBERED = 1024
_memory: dict[tuple[str, Any], Any] = {}


def _remembered(what: str, tree: Any, look: Callable[[], Any]) -> Any:
    """What is known of arguments with this structure, looked at only the first time."""
    try:
        return _memory[what, tree]
    except KeyError:
        if len(_memory) >= _REMEMBERED:
            _memory.clear()
        found = _memory[what, tree] = look()
        return found
    except TypeError:  # a structure that has no hash
        return look()


# -- flax linen ------------------------------------------------------------------------------------


def only_probing() -> bool:
    """Whether the present trace is made to look at a function, and will not be run.

    ``flax.linen.scan`` traces its body once more than it runs it, to find out which variables are
    the same in every iteration. A log there is not the program's.
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
    """Whether there are objects of ``flax.nnx`` in ``arguments``, whose structure is ``tree``.

    A function may change such an object, and its caller sees the change.
    """
    nnx = loaded("flax.nnx")
    if nnx is None:
        return False

    return bool(_remembered("state", tree, lambda: _any_state(nnx, arguments)))


def _any_state(nnx: Any, arguments: Any) -> bool:
    parts = jax.tree.leaves(arguments, is_leaf=lambda x: _is_state(nnx, x))
    return any(_is_state(nnx, part) for part in parts)


def _is_state(nnx: Any, x: Any) -> bool:
    return isinstance(x, nnx.Variable) or bool(nnx.graph.is_graph_node(x))


def unbound(fun: Any) -> tuple[Any, tuple]:
    """A function and the arguments it is bound to, where ``flax.nnx`` has objects among those.

    A method of a module changes the module, as one that gets it as an argument does.
    """
    nnx = loaded("flax.nnx")
    if nnx is None:
        return fun, ()
    if isinstance(fun, types.MethodType) and _is_state(nnx, fun.__self__):
        return fun.__func__, (fun.__self__,)
    if isinstance(fun, functools.partial) and any(
        _is_state(nnx, part)
        for part in jax.tree.leaves(fun.args, is_leaf=lambda x: _is_state(nnx, x))
    ):
        rest = functools.partial(fun.func, **fun.keywords) if fun.keywords else fun.func
        return rest, fun.args
    if _is_state(nnx, fun):
        return type(fun).__call__, (fun,)
    return fun, ()


def pure(fun: Callable[[], Any], tag: Any) -> Callable[..., Any]:
    """The function that ``fun()`` gives, on states in place of the objects of ``flax.nnx``.

    It returns what became of its arguments together with the output.
    """

    def on_states(*args: Any, **kwargs: Any) -> Any:
        nnx = loaded("flax.nnx")
        args, kwargs = nnx.from_tree((args, kwargs), ctxtag=tag, is_inner=True)
        out = fun()(*args, **kwargs)
        changed = jax.tree.map(
            lambda x: x if _is_state(nnx, x) else None,
            (args, kwargs),
            is_leaf=lambda x: _is_state(nnx, x),
        )
        return nnx.to_tree((changed, out), ctxtag=tag)

    return on_states


def call_with_state(
    call: Callable[[tuple, dict[str, Any]], tuple[Any, Any]],
    args: tuple,
    kwargs: dict[str, Any],
    tag: Any,
) -> tuple[Any, Any]:
    """Call a function made by :func:`pure`, and change the caller's objects as it did."""
    nnx = loaded("flax.nnx")
    with nnx.update_context(tag):
        states, named = nnx.to_tree((args, kwargs), ctxtag=tag)
        after, more = call(states, named)
        _, out = nnx.from_tree(after, ctxtag=tag, is_inner=False)
    return out, more


# -- equinox ---------------------------------------------------------------------------------------


def static_scalars(fun: Any, arguments: Any, tree: Any, leaves: Sequence[Any]) -> tuple[int, ...]:
    """Which leaves are Python scalars that equinox takes as static.

    Those are the ones inside of its modules, such as ``Dropout.inference``, and all of them for a
    function made by ``equinox.filter_jit``.
    """
    equinox = loaded("equinox")
    if equinox is None or not any(type(leaf) in SCALARS for leaf in leaves):
        return ()
    places: Sequence[range] = _remembered(
        "modules of filter_jit" if _is_filter_jit(fun) else "modules",
        tree,
        lambda: _static_places(equinox, fun, arguments, leaves),
    )
    return tuple(i for place in places for i in place if type(leaves[i]) in SCALARS)


def _static_places(
    equinox: Any, fun: Any, arguments: Any, leaves: Sequence[Any]
) -> tuple[range, ...]:
    """The ranges of leaves among which Python scalars are static."""
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
    """Whether a program may have an ``equinox.error_if`` inside, which calls back to raise."""
    return loaded("equinox") is not None and any(
        eqn.primitive.name == "pure_callback"
        or any(may_raise(inner) for inner in _compat.subjaxprs(eqn.params))
        for eqn in getattr(closed, "jaxpr", closed).eqns
    )


_EQUINOX_ERROR = "_EquinoxRuntimeError: "


@contextlib.contextmanager
def equinox_errors() -> Iterator[None]:
    """Raise what ``equinox.error_if`` found as equinox does, without what JAX puts around it."""
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
