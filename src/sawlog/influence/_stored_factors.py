"""A gradient as a sum over positions, made of the factors that a store holds of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.capture import SCALE, Block, decode
from sawlog.factored import Dense, OneHot, Pair, Projection, gradient
from sawlog.influence._logs import PREFIX
from sawlog.store import Reader

MATRIX, TABLE, BIAS = "matrix", "table", "bias"
_ROUNDING = {np.dtype(np.float64): 1e-3, np.dtype(np.float32): 1e-3}  # that of the model, too
_COARSE = 2.0**-7
_SMALLEST = 2.0**-25  # half of the least float16
_ALONE = (np.ones(()), np.zeros(()))

Rows = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class StoredCall:
    """One call of a layer.

    Args:
        kind: ``"matrix"``: inputs and output gradients; ``"table"``: the numbers of rows that were
            looked up and output gradients; ``"bias"``: output gradients alone.
        inputs: the column of its inputs; none for a bias.
        outputs: the column of the gradients of its outputs.
        side: which side of the gradient the inputs are, ``"left"`` (rows) or ``"right"``.
    """

    kind: str
    inputs: str
    outputs: str
    side: str


@dataclasses.dataclass(frozen=True)
class StoredFactors:
    """A layer whose gradient is a sum over positions of products of two stored logs.

    Args:
        block: what is logged of its gradients.
        calls: those of the layer.
        others: those of layers that may share its weight.
        positions: how many there are of each example.
        projection: what both sides were multiplied with before they were stored as a product.
    """

    block: Block
    calls: tuple[StoredCall, ...]
    others: tuple[StoredCall, ...]
    positions: int
    projection: Projection

    def shared(self) -> StoredFactors:
        """The layer as one whose weight is shared with the others."""
        return dataclasses.replace(self, calls=self.calls + self.others, others=())

    @property
    def elements(self) -> int:
        """How many numbers an example takes, with what is computed of it, about."""
        table = all(call.kind == TABLE for call in self.calls + self.others)
        left = self.block.ranks[0] or 1 if table else self.block.rows
        each = 6 * self.positions * (left + self.block.cols)
        return each * len(self.calls + self.others) + 3 * self.block.elements

    def columns(self, reader: Reader) -> list[str]:
        """What is to be read: the factors, and the gradient that they make up."""
        names = [name for call in self.calls for name in (call.inputs, call.outputs) if name]
        names.append(PREFIX + self.block.name)
        return names + [name + SCALE for name in names if name + SCALE in reader.names]

    def pairs(self, rows: Rows) -> list[Pair] | None:
        """The factors of each call, as the product was stored; None where they cannot be that."""
        found = []
        for call in self.calls:
            pair = self._pair(call, rows)
            if pair is None:
                return None
            small = pair.projected(*(_double(each) for each in self._sides))
            found.append(Pair(_made(small.left), _made(small.right)))
        return found

    def _pair(self, call: StoredCall, rows: Rows) -> Pair | None:
        outputs = self._factor(rows, call.outputs)
        if call.kind == BIAS:
            return Pair(Dense(outputs), Dense(np.ones_like(outputs[..., :1])))
        if call.kind == TABLE:
            numbers = _wide(rows, call.inputs).reshape(outputs.shape[:2])
            ids = np.rint(numbers).astype(np.int64)
            if (ids != numbers).any() or ids.min() < 0 or ids.max() >= self.block.rows:
                return None
            return Pair(OneHot(ids, self.block.rows), Dense(outputs))
        inputs = Dense(self._factor(rows, call.inputs), one=len(self.block.parameters) > 1)
        return Pair(inputs, Dense(outputs)) if call.side == "left" else Pair(Dense(outputs), inputs)

    def _factor(self, rows: Rows, name: str) -> np.ndarray:
        """``[examples, positions, features]`` in float64."""
        values = _wide(rows, name)
        return values.reshape(len(values), math.prod(values.shape[1:-1]), values.shape[-1])

    @property
    def _sides(self) -> tuple[Any, Any]:
        return self.projection.left, self.projection.right

    def adds_up(self, pairs: Sequence[Pair] | None, rows: Rows) -> bool:
        """Whether the factors make up the gradients that are stored, as far as rounding goes."""
        if pairs is None:
            return False
        name = PREFIX + self.block.name
        stored = _wide(rows, name).reshape(-1, *self.block.stored)
        apart = _length(sum(gradient(pair) for pair in pairs) - stored)
        allowed = _noise(rows, name, _length(stored), self.block.elements)
        stretch = math.prod(
            1.0 if side is None else float(np.linalg.norm(side, 2)) for side in self._sides
        )
        bias = len(self.block.parameters) - 1
        for call in self.calls:
            dense = call.kind == MATRIX
            size, noise = self._sizes(rows, call.outputs, 0)
            other, besides = self._sizes(rows, call.inputs, bias) if dense else _ALONE
            off = size * besides + other * noise + noise * besides
            allowed = allowed + stretch * off.sum(1)
        with np.errstate(invalid="ignore"):
            return not bool((apart > allowed).any())

    def _sizes(self, rows: Rows, name: str, bias: int) -> tuple[np.ndarray, np.ndarray]:
        """The length of a factor at each position, and by how much it may be off."""
        values = self._factor(rows, name)
        lengths = np.sqrt((values**2).sum(-1) + bias)
        return lengths, _noise(rows, name, lengths, values.shape[-1])


def _double(matrix: np.ndarray | None) -> np.ndarray | None:
    return None if matrix is None else matrix.astype(np.float64)


def _made(factor: Dense | OneHot) -> Dense | OneHot:
    """With the feature that is always 1 in its array."""
    return Dense(factor.full()) if isinstance(factor, Dense) else factor


def _wide(rows: Rows, name: str) -> np.ndarray:
    return decode(dict(rows), name).astype(np.float64)


def _length(rows: Any) -> np.ndarray:
    """The length of each row ``[n, ...]`` as a vector."""
    return np.sqrt((np.asarray(rows) ** 2).reshape(len(rows), -1).sum(1))


def _noise(rows: Rows, name: str, lengths: np.ndarray, size: int) -> np.ndarray:
    """By how much vectors of these lengths and this size may be off, as they are stored."""
    dtype = rows[name].dtype
    relative = lengths * _ROUNDING.get(dtype, _COARSE)
    if dtype == np.int8 and name + SCALE in rows:
        scale = rows[name + SCALE].astype(np.float64).reshape(-1, *(1,) * (lengths.ndim - 1))
        return relative + math.sqrt(size) * scale / 2
    return relative + (math.sqrt(size) * _SMALLEST if dtype == np.float16 else 0.0)
