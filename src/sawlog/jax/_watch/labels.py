"""Labels: what is known about a value of a program from where it comes.

=========  =====================================================================================
constant   depends on no input
parameter  a parameter, or computed from parameters and constants only: cast, scaled, transposed
data       depends on other inputs; it may be the output of a layer, or an updated parameter
=========  =====================================================================================

An equation that takes a parameter and data is a *use*: its output is the output of the layer that
the parameter belongs to. If the layer's own output gets there without another layer in between, and
meets a parameter that was not applied to it yet, as a bias is, the new output replaces the old one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from sawlog.jax import _compat


@dataclasses.dataclass(eq=False)
class LayerUse:
    """An equation that applies parameters of a layer to data.

    Attributes:
        name: The name of the layer.
        leaves: The parameters of the layer that were applied so far.
        order: Its number in program order.
        final: Whether its output is that of the layer.
    """

    name: str
    leaves: frozenset[str]
    order: int
    final: bool = True


@dataclasses.dataclass(frozen=True)
class Label:
    """What is known about a value.

    Attributes:
        leaves: Of a parameter, the names of the parameters it is computed from.
        exact: Whether it is that parameter itself, apart from its dtype.
        data: Whether it depends on other inputs than parameters.
        use: Of data, the last layer on the way to this value.
        fresh: Whether the equation of ``use`` made it.
        axis: The axis of the features of ``use``, if known.
        updated: The name of the parameter to which something was added, if it is one.
    """

    leaves: tuple[str, ...] = ()
    exact: bool = False
    data: bool = False
    use: LayerUse | None = None
    fresh: bool = False
    axis: int | None = None
    updated: str = ""

    @property
    def is_parameter(self) -> bool:
        """Whether it is computed from parameters and constants only."""
        return bool(self.leaves) and not self.data


CONSTANT = Label()
DATA = Label(data=True)

_SAME = frozenset({"convert_element_type", "copy", "copy_p", "log_cotangent", "reduce_precision"})
_SAME |= {"sharding_constraint", "optimization_barrier", "pvary", "pcast", "reshard", "name"}
_SHAPES = frozenset({"reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim"})
_SUMS = frozenset({"add", "add_any", "sub"})


def layer_of(leaves: Sequence[str]) -> str:
    """Return the name of the layer of parameters: ``dense`` for ``dense/kernel``."""
    layers = (leaf.rpartition("/")[0] or leaf for leaf in leaves)
    return "+".join(dict.fromkeys(layers))


def label_output(eqn: Any, labels: Sequence[Label], mode: str, uses: bool, order: int) -> Label:
    """Return the label of the output of an equation without inner programs.

    Args:
        eqn: The equation.
        labels: The labels of its operands.
        mode: ``"plain"``, or ``"forward"`` or ``"backward"`` inside a differentiation.
        uses: Whether an equation here may be a use of a layer.
        order: The number of the equation in program order.
    """
    if mode == "backward":
        return DATA  # gradients, also where they depend on parameters only
    name = eqn.primitive.name
    parameters = [i for i, label in enumerate(labels) if label.is_parameter]
    data = [i for i, label in enumerate(labels) if label.data]
    if not parameters:
        return _from_data(eqn, labels, data) if data else CONSTANT
    if not data or _only_selects(name, parameters, data):
        return _from_parameters(eqn, [labels[i] for i in parameters], bool(data))
    if mode == "plain" and not uses and (leaf := _updated(eqn, labels, parameters)):
        return Label(data=True, updated=leaf)
    if name == "select_n" and (leaf := _selected_update(labels)):
        return Label(data=True, updated=leaf)
    if not uses or not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.inexact):
        return _from_data(eqn, labels, data)
    return _used(eqn, labels, parameters, data, order)


def _only_selects(name: str, parameters: list[int], data: list[int]) -> bool:
    """Return whether data only selects a part of a parameter: ``stacked[i]``, or a mask."""
    if name == "dynamic_slice":
        return parameters == [0]
    return name == "select_n" and data == [0]


def _from_parameters(eqn: Any, labels: list[Label], selected: bool) -> Label:
    if eqn.primitive.name.startswith(("reduce_", "arg")):
        return CONSTANT  # a number about a parameter, such as its norm
    leaves = tuple(dict.fromkeys(leaf for label in labels for leaf in label.leaves))
    exact = all(label.exact for label in labels) and len(leaves) == 1
    exact = exact and not selected and eqn.primitive.name in _SAME
    return Label(leaves, exact)


def _from_data(eqn: Any, labels: Sequence[Label], data: list[int]) -> Label:
    name = eqn.primitive.name
    known = [labels[i] for i in data]
    if name in _SAME:
        return dataclasses.replace(known[0], fresh=False)
    if name == "select_n" and (leaf := _selected_update(labels)):
        return Label(data=True, updated=leaf)
    last = max(known, key=lambda label: label.use.order if label.use else -1)
    if last.use is None:
        return DATA
    shapes = name in _SHAPES
    axis = last.axis
    if axis is not None:
        place = data[known.index(last)]
        if shapes:
            axis = _compat.moved_axis(eqn, axis)
        elif eqn.invars[place].aval.shape != eqn.outvars[0].aval.shape:
            axis = None
    return Label(data=True, use=last.use, axis=axis)


def _updated(eqn: Any, labels: Sequence[Label], parameters: list[int]) -> str:
    """Return the parameter to which an equation adds something, or from which it subtracts."""
    place = parameters[0]
    same_shape = eqn.invars[place].aval.shape == eqn.outvars[0].aval.shape
    if len(parameters) > 1 or not labels[place].exact or not same_shape:
        return ""
    if eqn.primitive.name not in _SUMS or (eqn.primitive.name == "sub" and place != 0):
        return ""
    return labels[place].leaves[0]


def _selected_update(labels: Sequence[Label]) -> str:
    """Return the parameter that is updated or not, depending on a condition."""
    cases = {label.updated or (label.leaves[0] if label.exact else "") for label in labels[1:]}
    updated = any(label.updated for label in labels[1:])
    return cases.pop() if updated and len(cases) == 1 else ""


def _used(
    eqn: Any, labels: Sequence[Label], parameters: list[int], data: list[int], order: int
) -> Label:
    leaves = [leaf for i in parameters for leaf in labels[i].leaves]
    name, applied = layer_of(leaves), frozenset(leaves)
    for i in data:
        before = labels[i].use
        if before is not None and before.name == name and not before.leaves & frozenset(leaves):
            before.final = False
            applied |= before.leaves
    axis = _compat.feature_axis(eqn, parameters[0])
    if axis is None:
        axis = _from_data(eqn, labels, data).axis
    return Label(data=True, use=LayerUse(name, applied, order), fresh=True, axis=axis)
