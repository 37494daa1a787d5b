"""``attribute``: scores of stored examples for queries, at the speed of a matrix product."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from sawlog._array_device import NUMPY, ArrayDevice, device_named, device_of
from sawlog._atomic import new_folder
from sawlog._paths import absolute
from sawlog.capture import progress as bars
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._compatibility import check_together
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._scores import Scores, load_scores
from sawlog.influence._scoring_job import NONFINITE, ScoringJob, prepared
from sawlog.influence._threads import several
from sawlog.influence._top_k import TopK, check_top_k

MODES = ("dot", "cosine", "l2")
MOST_PARTS = 256
PARTS_A_THREAD = 4

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
    device: Any = None,
    weights: str = "same",
    nonfinite: str = "error",
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
        damping: a number; ``Relative(share)`` of the mean eigenvalue of each layer, or
            ``Typical(share)`` of the one that gradients typically meet; a dict of numbers by layer,
            as of :func:`sawlog.curvature.choose_damping`; None is a share of the mean eigenvalue
            and what suits the number of examples, see :class:`sawlog.curvature.Sampled`.
        mode: ``"dot"``; ``"cosine"``: divided by the lengths of both, in the measure of the
            curvature; ``"l2"``: minus the squared distance in that measure.
        top_k: keep only the best of each query; None keeps all scores.
        sign: which are the best: ``"positive"``, ``"negative"`` or ``"absolute"``.
        per_layer: whether to give the scores of each layer, too.
        names: which layers; all by default.
        budget: how many bytes of memory to use, about, beside the result; each worker of an
            executor uses as many. Queries that do not fit are scored in batches.
        executor: a pool of processes, threads or machines that share the disk; each takes files.
        checkpoint: a folder for what is done already; a second call with the same queries, logs
            and options goes on with it, any other begins anew.
        progress: whether to show a progress bar.
        device: where products are computed: ``"numpy"``, a device of torch or its name such as
            ``"cuda:0"``, or one of ``jax.devices()``. By default on the accelerator that the
            queries are on, if they are arrays on one, and otherwise by numpy, a thread for each
            core, whatever else the program has loaded; ``"cpu"`` is the same by torch.
        weights: ``"same"``: examples, queries and curvature come from the same weights of the
            model, as far as is known of them; ``"any"`` compares them knowingly.
        nonfinite: what to do about scores that are infinite or NaN: ``"error"``, which names the
            examples, or ``"keep"`` them; they are the worst then.

    Raises:
        ArgumentError: an option is not valid, layers do not fit, a statistic is missing, says
            which stage to run; or scores are not finite.
        WeightsMismatchError: examples and queries come from different weights.
    """
    _check_options(mode, top_k, sign, per_layer, budget)
    if nonfinite not in NONFINITE:
        listed = ", ".join(map(repr, NONFINITE))
        raise ArgumentError(f"nonfinite is one of {listed}, got {nonfinite!r}.")
    logs, asked = Logs(train, names=names), Logs(queries, names=names)
    if len(logs) == 0 or len(asked) == 0:
        raise ArgumentError("There are no examples to score, or no queries to score them for.")
    shapes = check_together(logs, asked, weights)
    place = logs.where(_place(device, queries))
    fitted = curvature_for(logs, curvature, budget=budget, place=place, weights=weights)
    exact = mode == "l2" or any(dtype == np.float64 for dtype, _ in shapes.values())
    options = {
        "damping": damping,
        "mode": mode,
        "place": place,
        "budget": budget,
        "top_k": top_k,
        "sign": sign,
        "per_layer": per_layer,
        "nonfinite": nonfinite,
    }
    found = []
    for batch in asked.batches(budget // 4):
        work = prepared(logs, batch, fitted, exact, **options)
        folder = None if checkpoint is None else absolute(checkpoint) / work.fingerprint()
        scores = _joined(_done(work, executor, folder, progress), work)
        if per_layer and top_k is not None:
            scores = dataclasses.replace(scores, layers=_of_layers(scores, work))
        found.append(scores)
    about: dict[str, Any] = {
        "mode": mode,
        "curvature": fitted.kind,
        "damping": {name: fitted.added(name, damping) for name in logs.layers},
        "train": logs.path,
        "weights": {
            "train": [each.weights for each in logs.provenance],
            "queries": [each.weights for each in asked.provenance],
        },
    }
    if top_k is not None:
        about |= {"top_k": int(top_k), "sign": sign}
    return dataclasses.replace(_stacked(found), about=about)


def _check_options(mode: Any, top_k: Any, sign: Any, per_layer: bool, budget: Any) -> None:
    if mode not in MODES:
        raise ArgumentError(f"mode is one of {', '.join(map(repr, MODES))}, got {mode!r}.")
    check_top_k(1 if top_k is None else top_k, sign)
    if per_layer and mode != "dot":
        raise ArgumentError('Only dot products are sums over layers. Hint: mode="dot".')
    if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
        raise ArgumentError(f"budget is a number of bytes from 1 on, got {budget!r}.")


def _place(device: Any, queries: Any) -> ArrayDevice:
    """Where to compute: where the program says, or on the accelerator that has the queries."""
    if device is not None or not isinstance(queries, Mapping) or not queries:
        return device_named(device)
    own = device_of(next(iter(queries.values())))
    return NUMPY if own.device.startswith("cpu") else own


def _done(
    work: ScoringJob, executor: Executor | None, folder: Path | None, show: bool
) -> list[Scores]:
    """The scores of all parts, in order, by the executor or by threads of our own."""
    files = min(work.logs.files, MOST_PARTS)
    if executor is not None:
        return _of_parts(work, files, executor, folder, show, own=False)
    with several(files, work.place) as (threads, workers):
        own = dataclasses.replace(work, budget=max(1, work.budget // workers))
        fine = folder is not None or show
        count = files if fine else min(files, 1 if workers == 1 else PARTS_A_THREAD * workers)
        return _of_parts(own, count, threads, folder, show, own=True)


def _of_parts(
    work: ScoringJob,
    count: int,
    executor: Executor | None,
    folder: Path | None,
    show: bool,
    *,
    own: bool,
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
        for part, scores in _computed(work, todo, executor, own):
            found[part] = scores
            if part in saved:
                _save(scores, saved[part])
            bar.step(scores.values.shape[1], 0)
    return [found[part] for part in parts]


def _computed(
    work: ScoringJob, todo: Sequence[tuple[int, int]], executor: Executor | None, own: bool
) -> Iterator[tuple[tuple[int, int], Scores]]:
    """The scores of each part, as soon as they are there."""
    if executor is None:
        for part in todo:
            yield part, work.run(part)
        return
    stop = threading.Event()
    more = (stop,) if own else ()  # which other processes would not see
    futures = {executor.submit(work.run, part, *more): part for part in todo}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        stop.set()
        for future in futures:
            future.cancel()


def _save(scores: Scores, path: Path) -> None:
    """All of it or nothing, under its name."""
    try:
        with new_folder(path) as aside:
            scores.save(aside)
    except FileExistsError:  # another process did the same part, and was faster
        if not (path / "store.json").exists():
            raise


def _joined(parts: Sequence[Scores], work: ScoringJob) -> Scores:
    """The scores of all examples, in their order."""
    filled = [part for part in parts if part.values.shape[1]]
    if work.top_k is not None:
        best = TopK.joined([TopK(work.top_k, work.sign, p.values, p.ids) for p in filled])
        assert best.scores is not None
        return Scores(work.ids, best.ids, best.scores)
    ids = np.concatenate([part.ids for part in filled])
    values = np.concatenate([part.values for part in filled], 1)
    layers = {
        name: np.concatenate([part.layers[name] for part in filled], 1)
        for name in (work.layers if work.per_layer else ())
    }
    return Scores(work.ids, ids, values, layers)


def _stacked(found: Sequence[Scores]) -> Scores:
    """The scores of several batches of queries."""
    first = found[0]
    if len(found) == 1:
        return first
    return Scores(
        np.concatenate([each.queries for each in found]),
        first.ids if first.whole else np.concatenate([each.ids for each in found]),
        np.concatenate([each.values for each in found]),
        {n: np.concatenate([each.layers[n] for each in found]) for n in first.layers},
    )


def _of_layers(scores: Scores, work: ScoringJob) -> dict[str, np.ndarray]:
    """The scores of each layer, for the best examples only, some of which are read at a time."""
    unique, places = np.unique(scores.ids, return_inverse=True)
    places = places.reshape(scores.ids.shape)
    layers = {name: np.empty(scores.ids.shape) for name in work.layers}
    most = max(1, work.budget // 2 // (8 * work.logs.elements + 16 * len(work.ids)))
    for start in range(0, len(unique), most):
        own = unique[start : start + most]
        part = work.logs.gather(own.tolist() if own.dtype.kind == "U" else own)
        queries, ranks = np.nonzero((places >= start) & (places < start + most))
        for name, values in layers.items():
            of = work.of_layer(name, part)
            values[queries, ranks] = of[queries, places[queries, ranks] - start]
    return layers
