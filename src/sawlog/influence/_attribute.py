"""``attribute``: scores of stored examples for queries, at the speed of a matrix product.

The queries are preconditioned once. Then the stored rows go by in blocks, straight from the memory
map, each multiplied with all queries; only the best scores are kept, unless all are asked for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np

from sawlog.capture import progress as bars
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._best import SIGNS, Best
from sawlog.influence._fitted import curvature_for
from sawlog.influence._logs import BUDGET, Logs, Part
from sawlog.influence._scores import Scores, load_scores

MODES = ("dot", "cosine", "l2")

StrPath = str | os.PathLike[str]


def attribute(
    train: Any,
    queries: Any,
    *,
    curvature: str | Curvature = "ekfac",
    damping: Damping = None,
    mode: str = "dot",
    top_k: int | None = None,
    sign: str = "positive",
    per_layer: bool = False,
    names: Sequence[str] | None = None,
    budget: int = BUDGET,
    executor: Executor | None = None,
    checkpoint: StrPath | None = None,
    progress: bool = False,
) -> Scores:
    """Score the examples of a store for queries.

    The influence of an example with the gradient ``g`` on a query with the gradient ``q`` is
    ``q^T (H + d)^-1 g``, with the curvature ``H`` and the damping ``d``: about by how much, times
    the number of examples, the loss of the query would grow if the example were left out. A
    positive score is that of an example that helps.

    Args:
        train: the path of a store of rows, a reader, a :class:`Logs`, or a dict of arrays.
        queries: the same; logged with the same layers and compression.
        curvature: ``"identity"``, ``"diagonal"``, ``"fisher"``, ``"kfac"``, ``"ekfac"``,
            ``"shampoo"``, fitted to ``train`` and kept with the run; or a fitted one.
        damping: a number; ``Relative(share)`` of the mean eigenvalue of each layer; a dict of
            numbers by layer, as of :func:`sawlog.curvature.choose_damping`; None is a share of 0.1.
        mode: ``"dot"``; ``"cosine"``: divided by the lengths of both, in the measure of the
            curvature; ``"l2"``: minus the squared distance in that measure.
        top_k: keep only the best of each query; None keeps all scores.
        sign: which are the best: ``"positive"``, ``"negative"`` or ``"absolute"``.
        per_layer: whether to give the scores of each layer, too.
        names: which layers; all by default.
        budget: how many bytes of memory to use, about.
        executor: a pool of processes, threads or machines that share the disk; each takes files.
        checkpoint: a folder for what is done already; a second call goes on with it.
        progress: whether to show a progress bar.

    Raises:
        ArgumentError: an option is not valid, layers do not fit, or a statistic is missing; says
            which stage to run.
    """
    _check(mode, MODES, "mode")
    _check(sign, SIGNS, "sign")
    if top_k is not None and (isinstance(top_k, bool) or not top_k >= 1):
        raise ArgumentError(f"top_k is a number from 1 on, or None, got {top_k!r}.")
    if per_layer and mode != "dot":
        raise ArgumentError('Only dot products are sums over layers. Hint: mode="dot".')
    logs, asked = Logs(train, names=names), Logs(queries, names=names)
    fitted = curvature_for(logs, curvature)
    work = _prepared(logs, asked, fitted, damping, mode, budget)
    work = dataclasses.replace(work, top_k=top_k, sign=sign, per_layer=per_layer)
    count = 1 if executor is None and checkpoint is None else min(logs.files, 256)
    folder = None if checkpoint is None else Path(checkpoint) / work.fingerprint(fitted)
    if len(logs) == 0 or len(asked) == 0:
        raise ArgumentError("There are no examples to score, or no queries to score them for.")
    parts = _done(work, count, executor, folder, progress)
    scores = _joined(parts, work, len(logs) if top_k is None else None)
    about: dict[str, Any] = {
        "mode": mode,
        "curvature": fitted.kind,
        "damping": {name: fitted.added(name, damping) for name in logs.layers},
        "train": logs.path,
    }
    if top_k is not None:
        about |= {"top_k": top_k, "sign": sign}
        if per_layer:
            scores = dataclasses.replace(scores, layers=_of_layers(scores, logs, work))
    return dataclasses.replace(scores, about=about)


def _check(given: Any, valid: Sequence[str], what: str) -> None:
    if given not in valid:
        raise ArgumentError(f"{what} is one of {', '.join(map(repr, valid))}, got {given!r}.")


@dataclasses.dataclass(frozen=True)
class Work:
    """All that scoring some examples needs, to be sent to another process.

    Args:
        logs: where the examples are.
        ids: those of the queries.
        solved: the queries after preconditioning, ``[queries, elements]`` for each layer.
        lengths: their squared lengths in the measure of the curvature.
        curvature, damping: for the lengths of the examples; None for dot products.
    """

    logs: Any
    ids: np.ndarray
    layers: tuple[str, ...]
    solved: Mapping[str, np.ndarray]
    lengths: np.ndarray
    curvature: Curvature | None
    damping: Damping
    mode: str
    budget: int
    top_k: int | None = None
    sign: str = "positive"
    per_layer: bool = False

    def fingerprint(self, curvature: Curvature) -> str:
        """A name for what is computed, so that nothing else is taken for it."""
        digest = hashlib.blake2b(digest_size=12)
        said = (self.mode, self.top_k, self.sign, self.per_layer, curvature.kind, self.layers)
        digest.update(repr(said).encode())
        for name in self.layers:
            digest.update(np.ascontiguousarray(self.solved[name]).tobytes())
        digest.update(np.ascontiguousarray(self.ids).tobytes())
        return digest.hexdigest()

    def run(self, part: tuple[int, int]) -> Scores:
        """Score one part of the examples."""
        logs = self.logs if isinstance(self.logs, Logs) else Logs(self.logs, names=self.layers)
        best = None if self.top_k is None else Best(self.top_k, self.sign)
        whole: list[np.ndarray] = []
        ids: list[np.ndarray] = []
        layers: dict[str, list[np.ndarray]] = {name: [] for name in self.layers}
        for piece in self._pieces(logs, part):
            each = {name: self._layer(name, piece) for name in self.layers}
            scores = self._moded(_added(each.values()), piece).T
            own = np.asarray(piece.ids)
            if best is not None:
                best.add(scores, own)
                continue
            whole.append(scores)
            ids.append(own)
            if self.per_layer:
                for name, values in each.items():
                    layers[name].append(values.T)
        if best is not None:
            empty = np.zeros((len(self.ids), 0))
            found = empty if best.scores is None else best.scores
            named = np.zeros(found.shape, np.int64) if best.ids is None else best.ids
            return Scores(self.ids, named, found)
        joined = {n: np.concatenate(v, 1) for n, v in layers.items() if v}
        if not whole:
            return Scores(self.ids, np.zeros(0, np.int64), np.zeros((len(self.ids), 0)))
        return Scores(self.ids, np.concatenate(ids), np.concatenate(whole, 1), joined)

    def _pieces(self, logs: Logs, part: tuple[int, int]) -> Iterator[Part]:
        """Blocks of rows whose scores fit into the budget as well."""
        most = max(1, self.budget // 4 // max(1, 8 * len(self.ids) * (1 + self.per_layer)))
        for block in logs.parts(self.budget // 2, part):
            for start in range(0, len(block), most):
                yield block if len(block) <= most else _cut(block, slice(start, start + most))

    def _layer(self, name: str, piece: Part) -> np.ndarray:
        """The dot products of one layer, ``[examples, queries]``."""
        column = piece.columns[name]
        scores = column.flat() @ self.solved[name].T
        if column.scale is not None:
            scores *= column.scale[:, None]
        return scores

    def _moded(self, scores: np.ndarray, piece: Part) -> np.ndarray:
        if self.mode == "dot":
            return scores
        assert self.curvature is not None
        rows = piece.rows()
        own = sum(self.curvature.quadratic(n, rows[n], self.damping) for n in self.layers)
        if self.mode == "l2":
            return 2 * scores - np.asarray(own)[:, None] - self.lengths
        with np.errstate(invalid="ignore", divide="ignore"):
            divided = scores / np.sqrt(np.outer(own, self.lengths))
        return np.where(np.isfinite(divided), divided, 0.0)


def _added(each: Any) -> np.ndarray:
    first, *others = each
    total = first if not others else first.copy()
    for values in others:
        total += values
    return np.asarray(total)


def _cut(part: Part, rows: slice) -> Part:
    columns = {
        name: dataclasses.replace(
            c, values=c.values[rows], scale=None if c.scale is None else c.scale[rows]
        )
        for name, c in part.columns.items()
    }
    return Part(part.ids[rows], columns)


def _prepared(
    logs: Logs, asked: Logs, curvature: Curvature, damping: Damping, mode: str, budget: int
) -> Work:
    lacking = [name for name in logs.layers if name not in asked.layers]
    if lacking:
        raise ArgumentError(
            f"The queries have no logs of the layers {', '.join(lacking[:5])}. Hint: watch the "
            "same layers, or choose some by names=."
        )
    part = asked.whole()
    rows = {name: part.columns[name].rows() for name in logs.layers}
    first = next(logs.parts(budget), None)
    exact = False
    if first is not None:
        exact = any(column.values.dtype == np.float64 for column in first.columns.values())
        for name in logs.layers:
            have, want = rows[name].shape[1:], first.columns[name].rows()[:1].shape[1:]
            if have != want:
                raise ArgumentError(
                    f"The gradients of {name!r} have the shape {list(have)} in the queries and "
                    f"{list(want)} in the store. Hint: log both with the same compression."
                )
    dtype = np.float64 if exact else np.float32
    solved = {
        name: np.ascontiguousarray(
            curvature.solve(name, values, damping).reshape(len(values), -1).astype(dtype)
        )
        for name, values in rows.items()
    }
    lengths = np.zeros(len(part))
    if mode != "dot":
        lengths = np.sum([curvature.quadratic(n, v, damping) for n, v in rows.items()], axis=0)
    return Work(
        logs=logs if logs.path is None else logs.path,
        ids=np.asarray(part.ids),
        layers=tuple(logs.layers),
        solved=solved,
        lengths=lengths,
        curvature=None if mode == "dot" else curvature,
        damping=damping,
        mode=mode,
        budget=budget,
    )


def _done(
    work: Work, count: int, executor: Executor | None, folder: Path | None, show: bool
) -> list[Scores]:
    """The scores of all parts, in order; those that are saved are not computed again."""
    parts = [(place, count) for place in range(count)]
    saved = {} if folder is None else {p: folder / f"{p[0]:05d}-of-{count:05d}" for p in parts}
    found: dict[tuple[int, int], Scores] = {
        part: load_scores(path) for part, path in saved.items() if (path / "store.json").exists()
    }
    todo = [part for part in parts if part not in found]
    with bars.shown("scoring", len(parts), quiet=not show) as bar:
        for _ in found:
            bar.step(0, 0)
        done = map(work.run, todo) if executor is None else executor.map(work.run, todo)
        for part, scores in zip(todo, done, strict=True):
            found[part] = scores
            if part in saved:
                _save(scores, saved[part])
            bar.step(scores.values.shape[1], 0)
    return [found[part] for part in parts]


def _save(scores: Scores, path: Path) -> None:
    """All of it or nothing, under its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    scores.save(aside)
    os.rename(aside, path)


def _joined(parts: Sequence[Scores], work: Work, examples: int | None) -> Scores:
    if work.top_k is not None:
        best = [Best(work.top_k, work.sign, p.values, p.ids) for p in parts if p.values.shape[1]]
        whole = Best.joined(best)
        assert whole.scores is not None
        return Scores(work.ids, whole.ids, whole.scores)
    filled = [part for part in parts if part.values.shape[1]]
    values = np.concatenate([part.values for part in filled], 1)
    ids = np.concatenate([part.ids for part in filled])
    layers = {
        name: np.concatenate([part.layers[name] for part in filled], 1)
        for name in (work.layers if work.per_layer else ())
    }
    assert examples is None or values.shape[1] == examples
    return Scores(work.ids, ids, values, layers)


def _of_layers(scores: Scores, logs: Logs, work: Work) -> dict[str, np.ndarray]:
    """The scores of each layer, for the best examples only."""
    unique, places = np.unique(scores.ids, return_inverse=True)
    places = places.reshape(scores.ids.shape)
    part = logs.gather(unique if unique.dtype.kind != "U" else unique.tolist())
    return {name: np.take_along_axis(work._layer(name, part).T, places, 1) for name in work.layers}
