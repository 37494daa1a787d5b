"""The gradient of a layer as a sum over positions of products of stored factors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.factored import Dense, OneHot, Pair, Projection, gradient
from sawlog.influence._layer_names import gradient_name
from sawlog.run_files._blocks import Block
from sawlog.run_files._encode import SCALE, decode
from sawlog.store import Reader

MATRIX, TABLE, BIAS = "matrix", "table", "bias"
_ROUNDING = {np.dtype(np.float64): 1e-3, np.dtype(np.float32): 1e-3}  # includes that of the model
_COARSE = 2.0**-7
_SMALLEST = 2.0**-25  # half of the smallest positive float16
_EXACT_ONE = (np.ones(()), np.zeros(()))  # the other factor of a lookup or a bias

Rows = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class StoredCall:
    """The columns of one call of a layer.

    Args:
        kind: ``"matrix"`` multiplies inputs and output gradients; ``"table"`` has the indices of
            rows that were looked up as its inputs; ``"bias"`` has output gradients only.
        inputs: the column of the inputs; ``""`` for a bias.
        outputs: the column of the gradients of the outputs.
        side: which factor of the gradient the inputs are, ``"left"`` (rows) or ``"right"``.
    """

    kind: str
    inputs: str
    outputs: str
    side: str


@dataclasses.dataclass(frozen=True)
class StoredFactors:
    """A layer whose gradient is a sum over positions of products of two stored logs.

    Args:
        block: the parameters whose gradient it is.
        calls: the calls of the layer.
        others: the calls of modules that may share its weight.
        positions: the number of positions of an example.
        projection: the matrices that the factors were projected with before they were multiplied
            and stored.
    """

    block: Block
    calls: tuple[StoredCall, ...]
    others: tuple[StoredCall, ...]
    positions: int
    projection: Projection

    def shared(self) -> StoredFactors:
        """Return the layer with the calls of the modules that may share its weight."""
        return dataclasses.replace(self, calls=self.calls + self.others, others=())

    @property
    def elements(self) -> int:
        """Approximate number of elements per example, with intermediate results."""
        table = all(call.kind == TABLE for call in self.calls + self.others)
        left = self.block.ranks[0] or 1 if table else self.block.rows
        each = 6 * self.positions * (left + self.block.cols)
        return each * len(self.calls + self.others) + 3 * self.block.elements

    def columns(self, reader: Reader) -> list[str]:
        """Return the columns to read: the factors, the gradient, and their scales."""
        names = [name for call in self.calls for name in (call.inputs, call.outputs) if name]
        names.append(gradient_name(self.block.name))
        return names + [name + SCALE for name in names if name + SCALE in reader.names]

    def pairs(self, rows: Rows) -> list[Pair] | None:
        """Return the projected factors of each call; None if they are invalid indices of rows."""
        found = []
        for call in self.calls:
            pair = self._pair(call, rows)
            if pair is None:
                return None
            small = pair.projected(*(_double(each) for each in self._sides))
            found.append(Pair(_with_ones(small.left), _with_ones(small.right)))
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
        """Return a log as ``[examples, positions, features]`` in float64."""
        values = _wide(rows, name)
        return values.reshape(len(values), math.prod(values.shape[1:-1]), values.shape[-1])

    @property
    def _sides(self) -> tuple[Any, Any]:
        return self.projection.left, self.projection.right

    def adds_up(self, pairs: Sequence[Pair] | None, rows: Rows) -> bool:
        """Return whether the factors multiply to the stored gradients, up to rounding."""
        if pairs is None:
            return False
        name = gradient_name(self.block.name)
        stored = _wide(rows, name).reshape(-1, *self.block.stored)
        apart = _norm(sum(gradient(pair) for pair in pairs) - stored)
        allowed = _noise(rows, name, _norm(stored), self.block.elements)
        stretch = math.prod(
            1.0 if side is None else float(np.linalg.norm(side, 2)) for side in self._sides
        )
        bias = len(self.block.parameters) - 1
        for call in self.calls:
            dense = call.kind == MATRIX
            size, noise = self._sizes(rows, call.outputs, 0)
            other, besides = self._sizes(rows, call.inputs, bias) if dense else _EXACT_ONE
            off = size * besides + other * noise + noise * besides
            allowed = allowed + stretch * off.sum(1)
        with np.errstate(invalid="ignore"):
            return not bool((apart > allowed).any())

    def _sizes(self, rows: Rows, name: str, bias: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the norm of a factor at each position, and a bound of its rounding error."""
        values = self._factor(rows, name)
        lengths = np.sqrt((values**2).sum(-1) + bias)
        return lengths, _noise(rows, name, lengths, values.shape[-1])


def _double(matrix: np.ndarray | None) -> np.ndarray | None:
    return None if matrix is None else matrix.astype(np.float64)


def _with_ones(factor: Dense | OneHot) -> Dense | OneHot:
    """Store the constant feature of a bias in the array of a factor."""
    return Dense(factor.full()) if isinstance(factor, Dense) else factor


def _wide(rows: Rows, name: str) -> np.ndarray:
    return decode(dict(rows), name).astype(np.float64)


def _norm(rows: Any) -> np.ndarray:
    """Return the norm of each row ``[n, ...]``."""
    return np.sqrt((np.asarray(rows) ** 2).reshape(len(rows), -1).sum(1))


def _noise(rows: Rows, name: str, lengths: np.ndarray, size: int) -> np.ndarray:
    """Return a bound of the rounding error of stored vectors with these norms and size."""
    dtype = rows[name].dtype
    relative = lengths * _ROUNDING.get(dtype, _COARSE)
    if dtype == np.int8 and name + SCALE in rows:
        scale = rows[name + SCALE].astype(np.float64).reshape(-1, *(1,) * (lengths.ndim - 1))
        return relative + math.sqrt(size) * scale / 2
    return relative + (math.sqrt(size) * _SMALLEST if dtype == np.float16 else 0.0)
