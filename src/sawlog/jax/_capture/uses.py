"""Gradients of one equation for each example, with respect to a constant that it uses.

``by_slices`` binds the equation for one example at a time, under ``vmap``: it costs what the
gradient of the batch costs. ``by_masks`` works for any equation whose examples are separate: it
pulls back the cotangents of one example after the other through the equation of the whole batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Place, Split, digits_of
from sawlog.jax._capture.constants import Constant
from sawlog.jax._capture.links import example_axes, varying
from sawlog.jax._capture.slices import masked, placed, split

Rows = Callable[[Sequence[Any], Sequence[Any]], Any]
"""Maps cotangents of outputs and the operands of an equation to ``[examples, *core.shape]``."""


@dataclasses.dataclass(frozen=True)
class ConstantUse:
    """An equation with examples that uses a constant.

    Args:
        bind: Computes the outputs from the operands.
        index: The position of the constant among the operands.
        constant: The constant.
        shapes: The shapes of the operands.
        places: Where the examples are in the operands, including constants of which each example
            sees one slice.
        outs: Where the examples are in the outputs.
        examples: The number of examples.
        bind_one: Computes them for one example; None if that is ``bind``.
        jointly: Whether JAX differentiates the equation only for all of its operands at once.
    """

    bind: Callable[[Sequence[Any]], list[Any]]
    index: int
    constant: Constant
    shapes: tuple[tuple[int, ...], ...]
    places: tuple[Place, ...]
    outs: tuple[Place, ...]
    examples: int
    bind_one: Callable[[Sequence[Any]], list[Any]] | None = None
    jointly: bool = False


def by_slices(use: ConstantUse) -> Rows:
    """Return the rows of a use whose equation can be bound for one example."""
    index, examples, mesh = use.index, use.examples, example_axes()
    own, bind = use.places[index], use.bind_one or use.bind
    core = tuple(use.constant.core.shape)
    sliced = isinstance(own, (Axis, Split)) and _extends(core, own, examples)

    def rows(cotangents: Sequence[Any], operands: Sequence[Any]) -> Any:
        operands = varying(operands, mesh)
        parts = [
            split(x, place, examples) if isinstance(place, (Axis, Split)) and i != index else x
            for i, (x, place) in enumerate(zip(operands, use.places, strict=True))
        ]
        axes: list[int | None] = [
            0 if isinstance(place, (Axis, Split)) else None for place in use.places
        ]
        axes[index] = 0 if sliced else None
        if sliced:
            assert isinstance(own, (Axis, Split))
            parts[index] = split(operands[index], own, examples)

        def one(given: Sequence[Any], cotangents: Sequence[Any]) -> Any:
            def of_core(x: Any) -> Any:
                values = list(given)
                values[index] = jnp.broadcast_to(x, _own_shape(use, x))
                return bind(values)

            return jax.vjp(of_core, given[index])[1](list(cotangents))[0]

        outs = [
            split(g, place, examples) if isinstance(place, (Axis, Split)) else g
            for g, place in zip(cotangents, use.outs, strict=True)
        ]
        found = jax.vmap(one, (axes, 0))(parts, outs)
        return placed(found, own, examples) if sliced and isinstance(own, (Axis, Split)) else found

    return rows


def _extends(shape: Sequence[int], place: Axis | Split, examples: int) -> bool:
    """Return whether an array has a slice for each example."""
    return all(shape[part.dim] != 1 for part, _ in digits_of(place, examples))


def _own_shape(use: ConstantUse, part: Any) -> tuple[int, ...]:
    """Return the shape of the constant as one example sees it."""
    shape, own = list(use.shapes[use.index]), use.places[use.index]
    if isinstance(own, (Axis, Split)):
        for axis, size in digits_of(own, use.examples):
            shape[axis.dim] //= size
    if len(part.shape) != len(shape):
        return tuple(part.shape)
    return tuple(shape)


def by_masks(use: ConstantUse) -> Rows:
    """Return the rows of any use whose outputs have the examples separate."""
    index, examples, mesh = use.index, use.examples, example_axes()

    def rows(cotangents: Sequence[Any], operands: Sequence[Any]) -> Any:
        operands = varying(operands, mesh)
        others = _others_with_gradients(use, operands) if use.jointly else []

        def of_operands(core: Any, *given: Any) -> Any:
            values = list(operands)
            values[index] = jnp.broadcast_to(core, use.shapes[index])
            for i, value in zip(others, given, strict=True):
                values[i] = value
            return use.bind(values)

        pull = jax.vjp(of_operands, operands[index], *(operands[i] for i in others))[1]

        def one(example: Any) -> Any:
            own = [
                masked(g, place, examples, example)
                if isinstance(place, (Axis, Split)) and _compat.has_gradient(_compat.typeof(g))
                else g
                for g, place in zip(cotangents, use.outs, strict=True)
            ]
            return pull(own)[0]

        return jax.lax.map(one, jnp.arange(examples))

    return rows


def _others_with_gradients(use: ConstantUse, operands: Sequence[Any]) -> list[int]:
    """Return the positions of all operands but the constant through which gradients can flow."""
    typed = [_compat.has_gradient(_compat.typeof(x)) for x in operands]
    return [i for i, differentiable in enumerate(typed) if differentiable and i != use.index]
