"""Rows that are sorted while the program runs, such as tokens by their expert.

``argsort`` of one number for each row is a permutation. Rows that are gathered with it are still
along the dimension of the examples, in another order, until they are gathered with its inverse or
written back. Uses of parameters in between are attached in the order of the batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Index, Known, State
from sawlog.jax._capture.constants import Traced
from sawlog.jax._capture.interpreter import CaptureInterpreter, structure_rule


@structure_rule("sort")
def sort(interpreter: CaptureInterpreter, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Follow a sort of rows by one number each, with their positions as another operand."""
    followed = interpreter.follow(eqn, operands)
    key, place = operands[0], operands[0].state.place
    rank_one = all(len(atom.aval.shape) == 1 for atom in eqn.invars)
    position = next((i for i, x in enumerate(operands) if _counts(x.state.known)), None)
    rows = all(i == position or x.state.place == place for i, x in enumerate(operands))
    if not isinstance(place, Axis) or not rank_one or position is None or not rows:
        return interpreter.bind(eqn, operands, followed)
    index = key.state.index
    back = index is not None and index == Index(place.order or 0, 1) and place.order is not None
    if place.order is not None and not back:
        return interpreter.bind(eqn, operands, followed)
    values = _compat.bind_equation(eqn, [x.value for x in operands])
    if back:
        own, made = dataclasses.replace(place, order=None), place.order
    else:
        made = interpreter.new_order(values[position])
        own = dataclasses.replace(place, order=made)
    assert made is not None
    return [
        Traced(
            value, State(own, x.state.param, None, Index(made, 1, back) if i == position else None)
        )
        for i, (value, x) in enumerate(zip(values, operands, strict=True))
    ]


def _counts(known: Known | None) -> bool:
    """Return whether integers are 0, 1, 2, ..."""
    if known is None or not known.complete or np.ndim(known.values) != 1:
        return False
    return bool((np.asarray(known.values) == np.arange(len(known.values))).all())
