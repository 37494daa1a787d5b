"""A scoring job: a batch of queries against some part of the examples.

Queries are preconditioned once. Stored rows are read from the memory map in blocks, and each block
is multiplied with all queries. Only the top k scores are kept, unless all are requested.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from typing import Any

import numpy as np

from sawlog._array_device import NUMPY, TORCH_CPU, ArrayDevice, to_numpy
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._logs import Logs
from sawlog.influence._rows import ExampleRows
from sawlog.influence._scores import Scores
from sawlog.influence._threads import limited_to
from sawlog.influence._top_k import TopK

NONFINITE = ("error", "keep")
USUAL_EXPONENT = 100  # powers of two whose inverse is a normal float32
TILE, PADDING = 256, 16  # a tile that is transposed fits into the cache of a core


@dataclasses.dataclass(frozen=True)
class ScoringJob:
    """Everything that scoring some examples needs; can be sent to another process.

    Args:
        logs: the examples.
        state: the state of the store when the job was made, to notice later writes.
        ids: the ids of the queries.
        layers: the names of the layers.
        solved: the preconditioned queries, ``[elements, queries]`` for each layer, each divided by
            a power of two to fit the range of float32.
        scale: those powers of two, ``[queries]``.
        lengths: the squared norms of the queries under the inverse of the damped curvature,
            ``[queries]``; 0 for ``"dot"``.
        curvature, damping: used for the norms of the examples.
        mode: ``"dot"``, ``"cosine"`` or ``"l2"``.
        device: where products are computed.
        budget: approximate bytes of memory to use.
        top_k, sign: which scores are kept; all if ``top_k`` is None.
        per_layer: whether the scores of each layer are kept.
        nonfinite: ``"keep"`` scores that are infinite or NaN, or raise an ``"error"``.
        threads: how many threads a matrix product may use; None is as many as usual.
    """

    logs: Logs
    state: str
    ids: np.ndarray
    layers: tuple[str, ...]
    solved: Mapping[str, np.ndarray]
    scale: np.ndarray
    lengths: np.ndarray
    curvature: Curvature
    damping: Damping
    mode: str
    device: ArrayDevice
    budget: int
    top_k: int | None
    sign: str
    per_layer: bool
    nonfinite: str = "keep"
    threads: int | None = None

    def fingerprint(self) -> str:
        """Return a hash of everything that the scores depend on."""
        digest = hashlib.blake2b(digest_size=12)
        added = [self.curvature.added(name, self.damping) for name in self.layers]
        kept = (self.top_k, self.sign, self.per_layer and self.top_k is None)
        parts = (self.logs.state(), self.mode, kept, self.curvature.kind, self.layers, added)
        digest.update(repr((parts, self.ids.tolist())).encode())
        arrays = [self.scale, *(self.solved[name] for name in self.layers)]
        if self.mode != "dot":
            own = [self.curvature.layers[n] for n in self.layers if n in self.curvature.layers]
            arrays += [array for layer in own for array in layer.arrays().values()]
            arrays += [] if self.curvature.joint is None else [self.curvature.joint.matrix]
        for array in arrays:
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def run(self, part: tuple[int, int], stop: threading.Event | None = None) -> Scores:
        """Score the i-th of n parts of the examples.

        Raises:
            StoreError: The store changed since the job was made.
            CancelledError: ``stop`` was set.
        """
        self.logs.check_state(self.state)
        pieces = self._pieces(part) if stop is None else _until(stop, self._pieces(part))
        with limited_to(self.threads):
            return self._all(pieces) if self.top_k is None else self._top_k(pieces, self.top_k)

    def _top_k(self, pieces: Iterator[ExampleRows], k: int) -> Scores:
        best = TopK(k, self.sign)
        for piece in pieces:
            best.add(self._checked(self._apply_mode(self._sum(piece), piece), piece), piece.ids)
        if best.scores is None:
            return Scores(self.ids, np.zeros((len(self.ids), 0), np.int64), self._no_scores())
        return Scores(self.ids, best.ids, self._unscaled(best.scores))

    def _all(self, pieces: Iterator[ExampleRows]) -> Scores:
        values: list[np.ndarray] = []
        ids: list[np.ndarray] = []
        layers: dict[str, list[np.ndarray]] = {name: [] for name in self.layers}
        for piece in pieces:
            ids.append(np.asarray(piece.ids))
            if self.per_layer:
                for name in self.layers:
                    layers[name].append(self.of_layer(name, piece))
                values.append(sum(each[-1] for each in layers.values()))  # type: ignore[arg-type]
            else:
                values.append(self._unscaled(self._apply_mode(self._sum(piece), piece)))
            self._checked(values[-1], piece)
        if not ids:
            return Scores(self.ids, np.zeros(0, np.int64), self._no_scores())
        joined = {name: np.concatenate(each, 1) for name, each in layers.items() if each}
        return Scores(self.ids, np.concatenate(ids), np.concatenate(values, 1), joined)

    def _checked(self, scores: np.ndarray, piece: ExampleRows) -> np.ndarray:
        if self.nonfinite == "error":
            check_finite(scores, piece.ids)
        return scores

    def _no_scores(self) -> np.ndarray:
        return np.zeros((len(self.ids), 0))

    def _pieces(self, part: tuple[int, int]) -> Iterator[ExampleRows]:
        """Yield blocks of rows that fit into the budget together with their scores."""
        each = 8 * len(self.ids) * (6 + self.per_layer * len(self.layers))
        most = max(1, self.budget // 4 // each)
        copies = 0 if self.mode == "dot" else 32  # norms are computed in float64
        for block in self.logs.parts(max(1, self.budget // 2), part, copies=copies):
            for start in range(0, len(block), most):
                yield block if len(block) <= most else block.cut(slice(start, start + most))

    @functools.cached_property
    def _solved_on_device(self) -> dict[str, Any]:
        return {name: self.device.put(each) for name, each in self.solved.items()}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_solved_on_device"}

    def layer(self, name: str, piece: ExampleRows) -> Any:
        """Return the dot products of a layer over :attr:`scale`, ``[queries, examples]``."""
        column = piece.columns[name]
        scores = self.device.product(column.flat(self.device), self._solved_on_device[name])
        if column.scale is not None:
            scores = scores * self.device.put(column.scale)[:, None]
        return scores.T

    def _sum(self, piece: ExampleRows) -> np.ndarray:
        first, *others = self.layers
        total = self.layer(first, piece)
        for name in others:
            total += self.layer(name, piece)
        return to_numpy(total)

    def _unscaled(self, scores: np.ndarray) -> np.ndarray:
        """Multiply dot products by :attr:`scale` in float64; other modes have no scale."""
        return scores.astype(np.float64) * self.scale[:, None] if self.mode == "dot" else scores

    def of_layer(self, name: str, piece: ExampleRows) -> np.ndarray:
        """Return the dot products of one layer in float64, ``[queries, examples]``."""
        return self._unscaled(to_numpy(self.layer(name, piece)))

    def _apply_mode(self, scores: np.ndarray, piece: ExampleRows) -> np.ndarray:
        if self.mode == "dot":
            return scores
        squares = self.curvature.quadratic_all(piece.rows(self.device), self.damping)
        own: Any = np.sum([to_numpy(each) for each in squares.values()], axis=0)
        if self.mode == "l2":
            with np.errstate(invalid="ignore"):
                apart = 2 * scores * self.scale[:, None] - own - self.lengths[:, None]
            return np.minimum(apart, 0.0)
        both = np.sqrt(own) * np.sqrt(self.lengths)[:, None]
        nothing = both == 0
        with np.errstate(invalid="ignore"):  # infinite rows yield NaN
            divided = scores * self.scale[:, None] / np.where(nothing, 1.0, both)
        return np.where(nothing, 0.0, divided)


def check_finite(scores: np.ndarray, ids: Any) -> None:
    """Raise an ArgumentError if scores ``[..., examples]`` are not finite."""
    finite = np.isfinite(scores)
    if finite.all():
        return
    odd = np.flatnonzero(~finite.reshape(-1, finite.shape[-1]).all(0))
    named = np.asarray(ids)[odd].tolist()
    listed = ", ".join(map(repr, named[:5])) + (", ..." if len(named) > 5 else "")
    raise ArgumentError(
        f"The scores of {len(named)} examples are infinite or NaN, because their rows are, or are "
        f"too large: {listed}. Hint: leave these examples out, or log them again; "
        'nonfinite="keep" keeps such scores and ranks them last.'
    )


def _until(stop: threading.Event, pieces: Iterator[ExampleRows]) -> Iterator[ExampleRows]:
    for piece in pieces:
        if stop.is_set():
            raise CancelledError
        yield piece


def prepare_job(
    logs: Logs, queries: ExampleRows, curvature: Curvature, exact: bool, **options: Any
) -> ScoringJob:
    """Precondition a batch of queries; ``exact`` computes products in float64."""
    damping, layers, device = options["damping"], tuple(logs.layers), options["device"]
    if exact and not device.doubles:
        device = options["device"] = NUMPY
    at = NUMPY if device == TORCH_CPU else device
    rows = {name: queries.columns[name].rows(at) for name in layers}
    lengths = np.zeros(len(queries))
    if options["mode"] != "dot":
        for squares in curvature.quadratic_all(rows, damping).values():
            lengths += to_numpy(squares)
    solved = rows if curvature.kind == "identity" else curvature.solve_all(rows, damping)
    flat = {
        name: to_numpy(each).reshape(len(queries), queries.columns[name].elements)
        for name, each in solved.items()
    }
    scale = _powers_of_two(np.max([_greatest(each) for each in flat.values()], axis=0))
    dtype = np.dtype(np.float64 if exact else np.float32)
    return ScoringJob(
        logs=logs,
        state="" if logs.reader is None else logs.state(),
        ids=np.asarray(queries.ids),
        layers=layers,
        solved=_as_columns(flat, scale, dtype),
        scale=scale,
        lengths=lengths,
        curvature=curvature,
        **options,
    )


def _greatest(rows: np.ndarray) -> np.ndarray:
    """Return the greatest absolute value of each row, ``[n]``."""
    return np.maximum(rows.max(1, initial=0.0), -rows.min(1, initial=0.0)).astype(np.float64)


def _as_columns(
    rows: Mapping[str, np.ndarray], scale: np.ndarray, dtype: np.dtype
) -> dict[str, np.ndarray]:
    """Divide rows by their scale and transpose them to contiguous ``[elements, rows]``."""
    usual = int(np.abs(np.frexp(scale)[1]).max(initial=0)) < USUAL_EXPONENT
    factor = 1 / scale[:, None]  # powers of two: exact
    factor = factor.astype(dtype) if usual else factor
    edges = np.cumsum([0, *(each.shape[1] for each in rows.values())])
    whole = np.empty((edges[-1], len(scale)), dtype)  # one allocation: huge pages
    tile = np.empty((len(scale), TILE + PADDING), dtype)
    columns = {}
    for first, last, (name, each) in zip(edges, edges[1:], rows.items(), strict=False):
        columns[name] = whole[first:last]
        for start in range(0, last - first, TILE):
            some = each[:, start : start + TILE]
            own = tile[:, : some.shape[1]]
            np.multiply(some, factor, out=own, casting="same_kind")
            columns[name][start : start + TILE] = own.T
    return columns


def _powers_of_two(greatest: np.ndarray) -> np.ndarray:
    """Return the power of two above each number; 1 for 0, infinities and NaN."""
    usual = np.isfinite(greatest) & (greatest > 0)
    exponents = np.frexp(np.where(usual, greatest, 1.0))[1]
    return np.where(usual, np.ldexp(1.0, np.clip(exponents, -1000, 1000)), 1.0)
