"""The program of a capture: trace the loss function, plan, differentiate, assemble."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from sawlog.errors import ArgumentError, CaptureError
from sawlog.jax import _compat
from sawlog.jax._capture import loops as loops
from sawlog.jax._capture import shards as shards
from sawlog.jax._capture import sorted_rows as sorted_rows
from sawlog.jax._capture import structures as structures
from sawlog.jax._capture.assemble import make_pairs
from sawlog.jax._capture.attaching import Recorded
from sawlog.jax._capture.axes import CONSTANT, ONE, Axis, CutBatch, Mixed, Split, State, Summed
from sawlog.jax._capture.captured import Captured
from sawlog.jax._capture.checks import check_array, check_losses, check_matrices, interaction
from sawlog.jax._capture.constants import Constant, Traced
from sawlog.jax._capture.interpreter import CaptureInterpreter
from sawlog.jax._capture.links import for_examples
from sawlog.jax._capture.parameters import Static
from sawlog.jax._capture.plan import CapturePlan, Layout, make_plan
from sawlog.jax._capture.precision import coarsest
from sawlog.jax._capture.slots import BlockSlot, Zeros
from sawlog.jax._capture.views import ParameterView
from sawlog.jax._capture.without_logs import without_logs
from sawlog.jax._core import arrays
from sawlog.jax._core.primitive import not_listening
from sawlog.run_files._blocks import Block, with_rank
from sawlog.run_files._options import Compression
from sawlog.run_files._projections import projection_of


@dataclasses.dataclass(frozen=True)
class Request:
    """The options of a capture, see :func:`~sawlog.jax.capture`."""

    loss_fn: Callable[..., Any]
    reduction: str
    has_aux: bool
    what: tuple[str, ...]
    prove: bool


@dataclasses.dataclass(frozen=True)
class Key:
    """The static part of a call: the structure of both arguments, the axes and the names."""

    params: Static
    batch: Static
    axes: tuple[int | None, ...]
    names: tuple[str, ...]


class CaptureProgram:
    """A loss function, traced for one batch.

    Args:
        request: What to compute.
        key: What is static of the arguments.
        params, batch: The arrays of both arguments.
        examples: The number of examples.
        chosen: The names of the watched parameters.
    """

    def __init__(
        self,
        request: Request,
        key: Key,
        params: Sequence[Any],
        batch: Sequence[Any],
        examples: int,
        chosen: Sequence[str],
    ) -> None:
        self._request, self._key, self._examples = request, key, examples
        self._params, self._batch = list(map(jnp.asarray, params)), list(batch)
        self._watched = [(i, name) for i, name in enumerate(key.names) if name in frozenset(chosen)]
        self._lead = self._examples_type()
        self._params = [arrays.on_mesh_of(self._lead, x) for x in self._params]
        self._closed, self._tree = self._trace()
        self._types, self.plan = self._survey()

    @property
    def _shapes(self) -> dict[str, Any]:
        return {name: self._params[i] for i, name in self._watched}

    def _examples_type(self) -> arrays.Type:
        """Return the type ``[examples]``, with the sharding that the batch has along them."""
        for x, axis in zip(self._batch, self._key.axes, strict=True):
            if axis is None:
                continue
            kind = arrays.type_of(jnp.asarray(x))
            if kind.sharding is not None:
                return arrays.along(kind, axis)
        return arrays.Type((self._examples,), bool)

    # -- tracing ------------------------------------------------------------------------------

    def _trace(self) -> tuple[Any, Any]:
        """Trace the loss function."""
        count, trees = len(self._params), []

        def flat(*arrays: Any) -> list[Any]:
            params = self._key.params.merge(arrays[:count])
            batch = self._key.batch.merge(arrays[count:])
            out = self._request.loss_fn(params, batch)
            if self._request.has_aux and not (isinstance(out, tuple) and len(out) == 2):
                raise ArgumentError(
                    "With has_aux=True the loss function must return (losses, aux); got "
                    f"{type(out).__name__}."
                )
            losses, aux = out if self._request.has_aux else (out, None)
            check_array(losses)
            leaves, tree = jax.tree.flatten(aux)
            trees.append(tree)
            return [losses, *leaves]

        arrays = [*self._params, *map(jnp.asarray, self._batch)]
        closed = _compat.trace_flat(flat, [_compat.typeof(x) for x in arrays], "loss_fn")
        check_losses(closed.out_avals[0], self._request.reduction, self._examples)
        return closed, trees[-1]

    def _survey(self) -> tuple[list[Any], CapturePlan]:
        """Find out every use of a parameter, and the types of the factors."""
        found: list[Any] = []

        def body() -> Any:
            zeros = Zeros() if "pairs" in self._request.what else None
            interpreter, losses, _ = self._evaluate(zeros, self._survey_constants())
            found[:] = [zeros.types if zeros else [], interpreter.records]
            return losses

        jax.eval_shape(body)
        return found[0], make_plan(found[1], self._shapes)

    def _survey_constants(self) -> dict[str, Constant]:
        made = {}
        for i, name in self._watched:
            zeros = arrays.zeros(for_examples(self._lead, self._params[i]))
            made[name] = _leaf(name, self._params[i], zeros)
        return made

    def _evaluate(
        self, zeros: Zeros | None, constants: Mapping[str, Constant]
    ) -> tuple[CaptureInterpreter, Any, list[Any]]:
        """Evaluate the loss function; return the losses and the leaves of its other output."""
        request = self._request
        interpreter = CaptureInterpreter(self._lead, zeros, sums=request.reduction != "none")
        operands = [
            Traced(x, State(None, name in constants), constants.get(name))
            for x, name in zip(self._params, self._key.names, strict=True)
        ]
        for x, axis in zip(self._batch, self._key.axes, strict=True):
            state = CONSTANT if axis is None else State(self._place(axis))
            operands.append(Traced(jnp.asarray(x), state))
        losses, *aux = interpreter.run(self._closed.jaxpr, self._closed.consts, operands)
        losses = _checked(interpreter, losses, request.reduction)
        return interpreter, losses.value, [out.value for out in aux]

    def _place(self, axis: int) -> Axis | Split:
        """Return where an array has the examples; one example is wherever its values are."""
        return Axis(axis) if self._examples > 1 else ONE

    # -- computing ----------------------------------------------------------------------------

    def compute(self, projection: Mapping[str, Any] | None) -> Captured:
        """Differentiate, and return gradients and factors."""
        matrices = self._matrices(projection)
        zeros = self._zeros(matrices)
        records: list[Recorded] = []

        def run(zeros: Any) -> Any:
            factors = Zeros(zeros["factors"]) if "pairs" in self._request.what else None
            interpreter, losses, aux = self._evaluate(factors, self._constants(zeros, matrices))
            records[:] = interpreter.records
            return losses, aux

        losses, pull, aux = jax.vjp(run, zeros, has_aux=True)
        (found,) = pull(self._seeds(losses))
        return Captured(
            losses,
            self._aux(aux),
            self._grads(found, matrices) if "grad" in self._request.what else {},
            make_pairs(self.plan, records, found, self._examples)
            if "pairs" in self._request.what
            else {},
            self._batch_gradient(matrices) if self._request.prove else None,
            coarsest(self._closed),
        )

    def _seeds(self, losses: Any) -> Any:
        scale = self._examples if self._request.reduction == "mean" else 1
        return arrays.ones(losses) * jnp.asarray(scale, losses.dtype)

    def _aux(self, values: Sequence[Any]) -> Any:
        if not self._request.has_aux:
            return None
        return jax.tree.unflatten(self._tree, values)

    def _matrices(self, projection: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Return the projection matrices of each block."""
        if projection is None:
            return None
        names = [block.name for block in self.plan.blocks]
        unknown = [name for name in projection if name not in names]
        if unknown:
            raise ArgumentError(
                f"`projection` has the names {', '.join(unknown)}, and the blocks are "
                f"{', '.join(names)}."
            )
        for block in self.plan.blocks:
            check_matrices(block, projection.get(block.name, (None, None)))
        return {name: tuple(projection.get(name, (None, None))) for name in names}

    def _slotted(self, layout: Layout, matrices: Any) -> bool:
        return matrices is not None and layout.factored and "grad" in self._request.what

    def _zeros(self, matrices: dict[str, Any] | None) -> dict[str, Any]:
        """Return the zeros that receive gradients and factors."""
        params = self._shapes
        blocks, whole = {}, {}
        for layout in self.plan.layouts:
            block = layout.block
            if self._slotted(layout, matrices):
                assert matrices is not None
                dtype = params[block.name].dtype
                shape = (*layout.group_sizes, *_stored(layout, matrices))
                blocks[block.name] = arrays.zeros(
                    for_examples(self._lead, arrays.Type(shape, dtype))
                )
            elif "grad" in self._request.what or not layout.factored:
                for name in block.parameters:
                    whole[name] = arrays.zeros(for_examples(self._lead, params[name]))
        factors = [arrays.zeros(kind) for kind in self._types]
        return {"blocks": blocks, "whole": whole, "factors": factors}

    def _constants(
        self, zeros: dict[str, Any], matrices: dict[str, Any] | None
    ) -> dict[str, Constant]:
        """Return the watched parameters as constants."""
        made: dict[str, Constant] = {}
        params = self._shapes
        for layout in self.plan.layouts:
            for name in layout.block.parameters:
                param = params[name]
                if layout.block.name in zeros["blocks"]:
                    slot = self._slot(layout, zeros["blocks"][layout.block.name], matrices, name)
                    made[name] = _slotted_leaf(name, param, slot)
                elif name in zeros["whole"]:
                    made[name] = _leaf(name, param, zeros["whole"][name])
                else:
                    none = arrays.zeros(for_examples(self._lead, param))
                    made[name] = _leaf(name, param, none)
        return made

    def _slot(self, layout: Layout, zeros: Any, matrices: Any, name: str) -> BlockSlot:
        left, right = (
            None if matrix is None else _grouped(jnp.asarray(matrix, zeros.dtype), layout)
            for matrix in matrices[layout.block.name]
        )
        return BlockSlot(
            zeros,
            left,
            right,
            layout.groups,
            layout.lefts,
            layout.rights,
            layout.block.inputs,
            bias=name == layout.bias,
            has_bias=layout.bias is not None,
        )

    def _grads(self, found: Any, matrices: dict[str, Any] | None) -> dict[str, Any]:
        """Return rows by parameter, or projected ones by block."""
        if matrices is None:
            return {name: found["whole"][name] for _, name in self._watched}
        return {
            layout.block.name: self._block_rows(layout, found, matrices)
            for layout in self.plan.layouts
        }

    def _block_rows(self, layout: Layout, found: Any, matrices: dict[str, Any]) -> Any:
        name = layout.block.name
        if name in found["blocks"]:
            rows = found["blocks"][name]
        else:
            rows = self._projected(layout, found["whole"], matrices)
        if layout.groups:
            rows = jnp.reshape(rows, (rows.shape[0], layout.block.shape[0], *rows.shape[-2:]))
        return rows

    def _projected(self, layout: Layout, whole: Any, matrices: dict[str, Any]) -> Any:
        """Project the whole gradients of a block."""
        first = next(iter(whole.values()))
        shape = (first.shape[0], *layout.group_sizes, *_stored(layout, matrices))
        total = jnp.zeros(shape, whole[layout.block.name].dtype)
        for name in layout.block.parameters:
            slot = self._slot(layout, total, matrices, name)
            total = total + slot.rows(whole[name])
        return total

    def _batch_gradient(self, matrices: dict[str, Any] | None) -> dict[str, Any]:
        """Return the gradient of the batch by ordinary differentiation."""

        def total(params: Any) -> Any:
            own = list(self._params)
            for (i, _), value in zip(self._watched, params, strict=True):
                own[i] = value
            arrays = [*own, *map(jnp.asarray, self._batch)]
            losses = jaxpr_as_fun(silent)(*arrays)[0]
            return (losses * self._seeds(losses)).sum()

        silent = without_logs(self._closed)
        with not_listening():
            grads = jax.grad(total)([self._params[i] for i, _ in self._watched])
        named = {name: g[None] for (_, name), g in zip(self._watched, grads, strict=True)}
        if matrices is None:
            return {name: g[0] for name, g in named.items()}
        return {
            layout.block.name: self._block_rows(layout, {"blocks": {}, "whole": named}, matrices)[0]
            for layout in self.plan.layouts
        }


def random_matrices(blocks: Sequence[Block], rank: int) -> dict[str, tuple[Any, Any]]:
    """Return random orthonormal projections of blocks, seeded by their names."""
    ranked = [with_rank(block, rank) for block in blocks]
    made = {block.name: projection_of(block, Compression(rank=rank), None) for block in ranked}
    return {name: (each.left, each.right) for name, each in made.items()}


def _leaf(name: str, param: Any, zeros: Any) -> Constant:
    view = ParameterView.of(name, param.shape)
    return Constant(param, frozenset(), lambda: zeros, frozenset({name}), view)


def _slotted_leaf(name: str, param: Any, slot: BlockSlot) -> Constant:
    view, shape, dtype = ParameterView.of(name, param.shape), tuple(param.shape), param.dtype

    def make() -> Any:
        return slot.whole(shape, dtype)

    return Constant(param, frozenset(), make, frozenset({name}), view, slot)


def _stored(layout: Layout, matrices: Mapping[str, Any]) -> tuple[int, int]:
    """Return the shape of a projected block, without groups."""
    left, right = matrices[layout.block.name]
    rows, cols = layout.block.shape[-2:]
    return (rows if left is None else left.shape[-1], cols if right is None else right.shape[-1])


def _grouped(matrix: Any, layout: Layout) -> Any:
    """Return a projection matrix with the groups of the parameter as leading dimensions."""
    if not layout.groups:
        return matrix
    return jnp.reshape(matrix, (*layout.group_sizes, *matrix.shape[-2:]))


def _checked(interpreter: CaptureInterpreter, losses: Traced, reduction: str) -> Traced:
    """Return the losses, whose examples must be separate."""
    place = losses.state.place
    if isinstance(place, Mixed):
        raise interaction(place)
    if reduction != "none":
        if isinstance(place, Summed) or place == ONE:
            return losses
        raise CaptureError(
            f"With reduction={reduction!r} the loss must be a sum or mean over the examples of the "
            "batch. Hint: return one loss for each example instead."
        )
    if place is None:
        return interpreter.promoted(losses, Axis(0), "the losses")
    if place not in (Axis(0), ONE):
        at = f": see {place.where}" if isinstance(place, CutBatch) else ""
        raise CaptureError(
            f"The losses are not in the order of the batch{at}. Hint: return the loss of the first "
            "example first; undo a sort with the inverse permutation, jnp.argsort(order)."
        )
    return losses
