"""Equations of some of the examples: a batch that is cut into pieces and put together again.

An equation whose operands have the same examples is evaluated as if these were the batch, with
their rows of all zeros. Pieces with different examples can be joined or, for a declared sum,
added. Whatever else combines them combines examples.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._capture.axes import ONE, Axis, CutBatch, Mixed, Place, Split, State, Summed, joined
from sawlog.jax._capture.axis_rules.table import where
from sawlog.jax._capture.constants import Constant, Traced
from sawlog.jax._capture.cut_rows import completed, numbers_of, place_of, whole_or_cut
from sawlog.jax._core import arrays

_DIFFERENT = "combines different examples of the batch"


def has_cuts(operands: Sequence[Traced]) -> bool:
    """Return whether an operand has some of the examples."""
    return any(isinstance(x.state.place, CutBatch) for x in operands)


def equation_of_cuts(interpreter: Any, eqn: Any, operands: list[Traced]) -> list[Traced]:
    """Evaluate an equation that has operands with some of the examples."""
    if interpreter.examples_type.sharding is not None:
        return _mixed(eqn, operands, "selects some of the examples of a batch that is sharded")
    place = _joined(interpreter, eqn, operands)
    if place is not None:
        value = _compat.bind_equation(eqn, [x.value for x in operands])[0]
        return [Traced(value, State(place, any(x.state.param for x in operands)))]
    places = [x.state.place for x in operands]
    chosen = {place.chosen for place in places if isinstance(place, CutBatch)}
    if len(chosen) == 1 and not any(isinstance(place, (Axis, Split)) for place in places):
        return within(interpreter, eqn, operands, chosen.pop())
    if interpreter.sums and eqn.primitive.name in ("add", "add_any", "sub"):
        return interpreter.equation(eqn, [_as_sum(x) for x in operands])
    return _mixed(eqn, operands, _DIFFERENT)


def within(
    interpreter: Any, eqn: Any, operands: Sequence[Traced], chosen: tuple[int, ...]
) -> list[Any]:
    """Evaluate an equation as if the chosen examples were the batch."""
    examples, start = interpreter.examples, len(interpreter.records)
    own = [_taken(x, chosen) for x in operands]
    with interpreter.some_examples(len(chosen)), _zeros_of_cut(interpreter, examples, chosen):
        outs = interpreter.equation(eqn, own)
    for i, record in enumerate(interpreter.records[start:], start):
        cut = chosen if record.cut is None else tuple(chosen[n] for n in record.cut)
        interpreter.records[i] = dataclasses.replace(record, cut=cut)
    at = next(x.state.place.where for x in operands if isinstance(x.state.place, CutBatch))
    return [_returned(out, CutBatch(ONE, chosen, at), examples, eqn) for out in outs]


def _taken(traced: Traced, chosen: tuple[int, ...]) -> Traced:
    """Return an operand as the chosen examples see it."""
    state, constant = traced.state, traced.constant
    if isinstance(state.place, CutBatch):
        return dataclasses.replace(
            traced, state=dataclasses.replace(state, place=state.place.place)
        )
    if constant is None:
        return traced
    return dataclasses.replace(traced, constant=_constant(constant, chosen))


def _constant(constant: Constant, chosen: tuple[int, ...]) -> Constant:
    """Return a constant whose zeros are those of the chosen examples."""
    slot = constant.slot
    if slot is not None:
        slot = dataclasses.replace(slot, zeros=rows(slot.zeros, chosen))
    return dataclasses.replace(
        constant, make_zeros=lambda: rows(constant.make_zeros(), chosen), slot=slot
    )


def rows(array: Any, chosen: Sequence[int], axis: int = 0) -> Any:
    """Return the rows of the chosen examples."""
    first, count = chosen[0], len(chosen)
    if tuple(chosen) == tuple(range(first, first + count)):
        return jax.lax.slice_in_dim(array, first, first + count, axis=axis)
    return jnp.take(array, np.asarray(chosen), axis=axis, unique_indices=True)


def _returned(traced: Traced, cut: CutBatch, examples: int, eqn: Any) -> Traced:
    """Return an output of the examples of a cut as the whole batch sees it."""
    place: Place = traced.state.place
    if isinstance(place, CutBatch):
        chosen = [cut.chosen[n] for n in place.chosen]
        place = whole_or_cut(place.place, chosen, examples, place.where)
    elif isinstance(place, (Axis, Split)):
        place = whole_or_cut(place, cut.chosen, examples, cut.where)
    elif traced.constant is not None:
        why = "returns a value of parameters alone together with values of some of the examples"
        return Traced(traced.value, State(Mixed(why, where(eqn)), True))
    return dataclasses.replace(traced, state=dataclasses.replace(traced.state, place=place))


@contextlib.contextmanager
def _zeros_of_cut(interpreter: Any, examples: int, chosen: tuple[int, ...]) -> Iterator[None]:
    """Hand out zeros for factors that are rows of those of the batch."""
    outer = interpreter.zeros
    interpreter.zeros = outer and _CutZeros(outer, examples, chosen)
    try:
        yield
    finally:
        interpreter.zeros = outer


class _CutZeros:
    """Hands out zeros for factors of the chosen examples, see :class:`Zeros`."""

    def __init__(self, outer: Any, examples: int, chosen: tuple[int, ...]) -> None:
        self._outer, self._examples, self._chosen = outer, examples, chosen
        self.types, self.axes = outer.types, outer.axes

    def take(self, like: Any, axis: int = 0) -> Any:
        """Return the next zeros."""
        whole = arrays.resized(arrays.type_of(like), axis, self._examples)
        return rows(self._outer.take(whole, axis), self._chosen, axis)


def _mixed(eqn: Any, operands: Sequence[Traced], why: str) -> list[Traced]:
    found = next((x.state.place for x in operands if isinstance(x.state.place, Mixed)), None)
    place = found or Mixed(why, where(eqn))
    param = any(x.state.param for x in operands)
    values = _compat.bind_equation(eqn, [x.value for x in operands])
    return [
        Traced(value, State(place, param and _compat.has_gradient(var.aval)))
        for value, var in zip(values, eqn.outvars, strict=True)
    ]


def _as_sum(traced: Traced) -> Traced:
    """Return a value of some examples as a term of the declared sum."""
    if not isinstance(traced.state.place, (Axis, Split, CutBatch)):
        return traced
    return Traced(traced.value, State(Summed(), traced.state.param))


# -- pieces put together ------------------------------------------------------------------------


def _joined(interpreter: Any, eqn: Any, operands: Sequence[Traced]) -> Place:
    """Return the place of pieces that are put together; None if the equation does not do that."""
    if any(x.constant is not None for x in operands):
        return None
    rule = _JOINS.get(eqn.primitive.name)
    found = None if rule is None else rule(eqn, operands, interpreter.examples)
    if found is None:
        return _in_rows(eqn, operands, interpreter.examples)
    dim, numbers = found
    numbers = completed(numbers, interpreter.examples)
    if numbers is None:
        why = "adds rows that are not examples to the dimension of the examples"
        return Mixed(why, where(eqn))
    place = place_of(numbers, dim, interpreter.examples)
    if isinstance(place, (Mixed, CutBatch)):
        return dataclasses.replace(place, where=where(eqn))
    return place


def _in_rows(eqn: Any, operands: Sequence[Traced], examples: int) -> Place:
    """Return the place of pieces of equal size along a new dimension, such as those of steps."""
    cuts = [x.state.place for x in operands if isinstance(x.state.place, CutBatch)]
    name = eqn.primitive.name
    if name not in ("stack", "concatenate") or len(cuts) < len(operands):
        return None
    new, own = _compat.operated_axis(eqn), cuts[0].place
    if not isinstance(own, Axis) or own.order is not None:
        return None
    if any((cut.place, len(cut.chosen)) != (own, len(cuts[0].chosen)) for cut in cuts):
        return None
    if name == "stack":
        own = own.at(own.dim + (own.dim >= new))
    elif own.dim == new or any(atom.aval.shape[new] != 1 for atom in eqn.invars):
        return None
    numbers = np.asarray([cut.chosen for cut in cuts])
    if numbers.size != examples:
        return None
    count, size = numbers.shape
    if (numbers.reshape(-1) == np.arange(examples)).all():
        return joined([(Axis(new), count), (own, size)])
    if (numbers.T.reshape(-1) == np.arange(examples)).all():
        return joined([(own, size), (Axis(new), count)])
    return None


def _numbers(traced: Traced, dim: int, size: int, examples: int) -> Any:
    if traced.state.place is None:
        return np.full(size, -1)
    return numbers_of(traced.state.place, dim, size, examples)


def _concatenated(eqn: Any, operands: Sequence[Traced], examples: int) -> Any:
    dim = _compat.operated_axis(eqn)
    found = [
        _numbers(x, dim, atom.aval.shape[dim], examples)
        for x, atom in zip(operands, eqn.invars, strict=True)
    ]
    return None if any(each is None for each in found) else (dim, np.concatenate(found))


def _stacked(eqn: Any, operands: Sequence[Traced], examples: int) -> Any:
    dim = _compat.operated_axis(eqn)
    found = [_numbers(x, -1, 1, examples) for x in operands]
    return None if any(each is None for each in found) else (dim, np.concatenate(found))


def _updated(eqn: Any, operands: Sequence[Traced], examples: int) -> Any:
    """Follow a piece that replaces rows at a known position."""
    whole, update, *starts = operands
    shape, piece = (tuple(atom.aval.shape) for atom in eqn.invars[:2])
    differs = [dim for dim, size in enumerate(shape) if piece[dim] != size]
    if len(differs) != 1 or any(x.state.place is not None for x in starts):
        return None
    (dim,) = differs
    known = starts[dim].state.known
    new = _numbers(update, dim, piece[dim], examples)
    old = _numbers(whole, dim, shape[dim], examples)
    if known is None or not known.complete or new is None or old is None:
        return None
    start = int(np.clip(known.values, 0, shape[dim] - piece[dim]))
    numbers = old.copy()
    numbers[start : start + piece[dim]] = new
    return dim, numbers


def _scattered(eqn: Any, operands: Sequence[Traced], examples: int) -> Any:
    """Follow a piece that replaces rows at known indices."""
    whole, indices, update = operands
    dims, known = _compat.Scatter.read(eqn), indices.state.known
    if indices.state.place is not None or known is None or not known.complete:
        return None
    if len(dims.indexed) != 1 or dims.batching:
        return None
    (dim,) = dims.indexed
    shape, piece = tuple(eqn.invars[0].aval.shape), tuple(eqn.invars[2].aval.shape)
    batch = [d for d in range(len(piece)) if d not in dims.window]
    count = int(np.prod([piece[d] for d in batch]))
    old = _numbers(whole, dim, shape[dim], examples)
    at = np.reshape(np.asarray(known.values), (-1,))
    if dim in dims.inserted:
        if len(batch) > 1 or [d for d in range(len(piece)) if d in batch] != batch:
            return None
        new = _numbers(update, batch[0] if batch else -1, count, examples)
        rows_at = at
    else:
        if count != 1:
            return None
        kept = [d for d in range(len(shape)) if d not in dims.inserted]
        own = dims.window[kept.index(dim)]
        new = _numbers(update, own, piece[own], examples)
        rows_at = at[0] + np.arange(piece[own])
    if new is None or old is None or len(new) != len(rows_at):
        return None
    if rows_at.min() < 0 or rows_at.max() >= shape[dim] or len(set(rows_at.tolist())) < len(new):
        return None
    numbers = old.copy()
    numbers[rows_at] = new
    return dim, numbers


_JOINS = {
    "concatenate": _concatenated,
    "stack": _stacked,
    "dynamic_update_slice": _updated,
    "scatter": _scattered,
}
