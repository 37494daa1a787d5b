"""Values of a traced program, and constants: values of parameters that have no examples.

A constant carries *zeros*, ``[examples, *shape]``, that receive its gradient for each example. An
equation of constants links the zeros of its output to those of its operands, with the
vector-Jacobian product of the equation for each example. So whatever a program does to a parameter
before it meets an example is covered: casts, reshapes, stacking, or a normalisation of weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.jax import _compat
from sawlog.jax._capture.axes import State
from sawlog.jax._capture.links import evaluate_varying, example_axes, link
from sawlog.jax._capture.views import ParameterView
from sawlog.jax._capture.without_logs import bind_silently
from sawlog.jax._core import arrays


@dataclasses.dataclass(frozen=True)
class Constant:
    """A value that depends on parameters and not on examples.

    Args:
        core: The value, with size 1 along every dimension in ``uniform``.
        uniform: Dimensions along which the value was broadcast.
        make_zeros: Returns zeros ``[examples, *core.shape]`` that receive the gradient of the
            core for each example.
        names: The parameters it depends on.
        view: Its elements, if they are those of one parameter.
        slot: Receives projected gradients; None if they are not projected.
    """

    core: Any
    uniform: frozenset[int]
    make_zeros: Callable[[], Any]
    names: frozenset[str]
    view: ParameterView | None = None
    slot: Any = None


@dataclasses.dataclass(frozen=True)
class Traced:
    """A value of the program.

    Args:
        value: The array.
        state: What is known of it.
        constant: Set if it depends on watched parameters and has no examples.
        origin: The use whose output it is, to which a bias may be added.
    """

    value: Any
    state: State
    constant: Constant | None = None
    origin: Any = None


def derive(
    fun: Callable[..., Any], operands: Sequence[Any], parents: dict[int, Constant], out: Any
) -> Callable[[], Any]:
    """Return what makes the zeros of a constant that is computed from others.

    Args:
        fun: Computes the value from the operands.
        operands: The operands; a parent's core at its position.
        parents: The operands that are constants of parameters, by position.
        out: The value.
    """
    places = list(parents)
    kind, axes = _compat.typeof(out), example_axes()
    types = list(map(_compat.typeof, operands))

    def back(cotangents: Any, *operands: Any) -> Any:
        def of_parents(*cores: Any) -> Any:
            given = list(operands)
            for place, core in zip(places, cores, strict=True):
                given[place] = core
            return fun(*given)

        pull = jax.vjp(of_parents, *(operands[place] for place in places))[1]
        return jax.vmap(pull)(cotangents)

    def of_residuals(cotangents: Any, operands: Any) -> Any:
        if not axes:
            return back(cotangents, *operands)
        shape = (cotangents.shape[0], *kind.shape)
        return evaluate_varying(back, [kind.update(shape=shape), *types], cotangents, *operands)

    def make() -> Any:
        with arrays.mesh_context([parents[place].core for place in places]):
            zeros = [parents[place].make_zeros() for place in places]
        return link(zeros, kind, tuple(operands), of_residuals)

    if arrays.is_of_auto_axes(kind) and not all(map(arrays.is_of_auto_axes, types)):
        made = make()  # here, for a loop inside cannot take zeros with another mesh
        return lambda: made
    return make


def full(constant: Constant, shape: Sequence[int]) -> Constant:
    """Return a constant whose core is the whole value."""
    if not constant.uniform:
        return constant

    def broadcast(core: Any) -> Any:
        return jnp.broadcast_to(core, tuple(shape))

    whole = broadcast(constant.core)
    make = derive(broadcast, [constant.core], {0: constant}, whole)
    return Constant(whole, frozenset(), make, constant.names)


def computed(eqn: Any, operands: Sequence[Traced]) -> list[Constant | None]:
    """Return the outputs of an equation of constants as constants."""
    moved = _moved(eqn, operands)
    if moved is not None:
        return [moved]
    parents = {
        i: full(each.constant, each.value.shape)
        for i, each in enumerate(operands)
        if each.constant is not None
    }
    values = [parents[i].core if i in parents else x.value for i, x in enumerate(operands)]
    names = frozenset().union(*(parent.names for parent in parents.values()))
    outs: list[Constant | None] = []
    bind = bind_silently(eqn)
    for i, var in enumerate(eqn.outvars):
        if not _compat.has_gradient(var.aval):
            outs.append(None)
            continue

        def fun(*given: Any, i: int = i) -> Any:
            return bind(given)[i]

        out = fun(*values)
        outs.append(Constant(out, frozenset(), derive(fun, values, parents, out), names))
    return outs


def _moved(eqn: Any, operands: Sequence[Traced]) -> Constant | None:
    """Return a constant whose elements are moved, broadcast or cast, as such."""
    name, given = eqn.primitive.name, operands[0].constant
    if given is None or any(x.constant is not None for x in operands[1:]):
        return None
    shape = tuple(eqn.outvars[0].aval.shape)
    if name in _compat.CASTS:  # backwards it would add up the gradients of all devices
        return dataclasses.replace(given, core=_bind(eqn)(given.core))
    fun: Callable[[Any], Any]
    if name in _SAME:
        fun, uniform, view = _bind(eqn), given.uniform, given.view
    elif name == "transpose":
        order = _compat.permutation(eqn)
        fun, uniform = _bind(eqn), frozenset(order.index(dim) for dim in given.uniform)
        view = given.view and given.view.transposed(order)
    elif name == "broadcast_in_dim":
        placed = _compat.broadcast_dimensions(eqn)
        sizes = [1] * len(shape)
        for own, dim in enumerate(placed):
            sizes[dim] = given.core.shape[own]
        new = tuple(sizes)
        fun = _reshape(new)
        uniform = frozenset(d for d, n in enumerate(new) if n != shape[d])
        view = given.view and given.view.reshaped(new)
    elif name in ("reshape", "squeeze", "expand_dims") and not given.uniform:
        if name == "reshape" and _compat.reshape_order(eqn) is not None:
            return None
        fun, uniform = _reshape(shape), frozenset()
        view = given.view and given.view.reshaped(shape)
    elif name == "reshard" and not given.uniform:
        core = _bind(eqn)(given.core)  # projections of it are made outside, on the other mesh
        make = derive(_bind(eqn), [given.core], {0: given}, core)
        return Constant(core, frozenset(), make, given.names, given.view)
    else:
        return None
    core = fun(given.core)
    make = derive(fun, [given.core], {0: given}, core)
    return Constant(core, uniform, make, given.names, view, given.slot)


_SAME = frozenset(
    [
        "convert_element_type",
        "copy",
        "copy_p",
        "sharding_constraint",
        "reduce_precision",
        "name",
    ]
)


def _reshape(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    return lambda core: jnp.reshape(core, shape)


def _bind(eqn: Any) -> Callable[[Any], Any]:
    return lambda core: _compat.bind_equation(eqn, [core])[0]
