"""``attribute``: score stored examples for queries by blocked matrix products."""

from __future__ import annotations

import dataclasses
import functools
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import _progress as bars
from sawlog._array_device import NUMPY, ArrayDevice, device_named, device_of
from sawlog._atomic import new_folder
from sawlog._paths import absolute
from sawlog._validate import one_of, positive_integer
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._compatibility import check_together
from sawlog.influence._engines import agreed, as_executor, leads, parts_for, threads_for
from sawlog.influence._ensemble import ensemble as mean_of
from sawlog.influence._fitted_curvature import curvature_for
from sawlog.influence._logs import BUDGET, Logs
from sawlog.influence._mixed_curvature import Components, mixed_curvature
from sawlog.influence._scores import Scores, load_scores
from sawlog.influence._scoring_job import NONFINITE, ScoringJob, prepare_job
from sawlog.influence._threads import cores, several
from sawlog.influence._top_k import TopK, check_top_k

MODES = ("dot", "cosine", "l2")
MOST_PARTS = 256
PARTS_PER_THREAD = 4

StrPath = str | os.PathLike[str]


def attribute(
    train: Any = None,
    queries: Any = None,
    *,
    ensemble: Iterable[Any] = (),
    curvature: str | Curvature = "ekfac",
    damping: Damping = None,
    second_moments: Mapping[str, Any] | None = None,
    mix: float | Components | None = None,
    mode: str = "dot",
    top_k: int | None = None,
    sign: str = "positive",
    per_layer: bool = False,
    names: Sequence[str] | None = None,
    budget: int = BUDGET,
    executor: Any = None,
    checkpoint: StrPath | None = None,
    progress: bool = False,
    device: Any = None,
    weights: str = "same",
    nonfinite: str = "error",
) -> Scores:
    """Score the examples of a store for queries.

    The influence of an example with gradient ``g`` on a query with gradient ``q`` is
    ``q^T (H + d)^-1 g``, where ``H`` is the curvature and ``d`` the damping. Divided by the number
    of examples, it estimates how much the loss of the query would increase if the example were
    left out of training. A positive score means that the example helps.

    Args:
        train: the path of a store of rows, a reader, a :class:`Logs`, or a dict of arrays.
        queries: the same, logged with the same layers and compression.
        ensemble: further runs, as pairs ``(train, queries)`` or as runs whose last queries are
            used: the same examples and queries, logged with models of other seeds or of random
            parts of the data. The result is the mean over all runs, with standard errors.
        curvature: one of :data:`sawlog.curvature.KINDS`: ``"identity"``, ``"diagonal"``,
            ``"fisher"``, ``"kfac"``, ``"ekfac"``, ``"shampoo"``. It is fitted to ``train`` and
            saved with the run. Or a fitted :class:`sawlog.curvature.Curvature`.
        damping: a number; ``Relative(share)`` of the mean eigenvalue of each layer;
            ``Typical(share)`` of the eigenvalue that gradients typically meet; or a dict of numbers
            by layer, such as that of :func:`sawlog.curvature.choose_damping`. The default, None, is
            a :class:`sawlog.curvature.Sampled` that suits the kind of curvature.
        second_moments: the second moments of an optimizer such as Adam, as arrays by layer in the
            layout of gradients (:func:`sawlog.torch.second_moments`). Gradients are divided by
            their roots before anything else, as the optimizer does. Needs whole gradients, and a
            curvature that is fitted to rows: ``"fisher"``, ``"diagonal"``, ``"shampoo"`` or
            ``"identity"``.
        mix: the share of the queries' own curvature in the curvature, or
            :class:`Components`: what all queries have in common gets less weight.
        mode: ``"dot"``; ``"cosine"``, divided by the norms of both under the inverse of the damped
            curvature; or ``"l2"``, minus the squared distance under it.
        top_k: keep only the best ``top_k`` scores of each query; None keeps all.
        sign: which scores are best: ``"positive"``, ``"negative"`` or ``"absolute"``.
        per_layer: whether to return the scores of each layer as well.
        names: the layers to use; all by default.
        budget: approximate bytes of memory to use besides the result; each worker of an executor
            uses as many. Queries that do not fit are scored in batches.
        executor: what computes parts in parallel, also on other machines that share the disk: a
            ``concurrent.futures.Executor``, a ``dask.distributed.Client``, the module ``ray``, a
            ``multiprocessing.Pool``, or a :class:`sawlog.torch.RankExecutor`. Its workers score
            files, and add up files to fit the curvature.
        checkpoint: a folder for finished parts. A second call with the same queries, logs and
            options resumes from it; any other call starts from scratch.
        progress: whether to show a progress bar.
        device: where products are computed: ``"numpy"``, a torch device or its name such as
            ``"cuda:0"``, or one of ``jax.devices()``. By default the accelerator that holds the
            queries, if they are arrays on one; otherwise numpy, with one thread per core. ``"cpu"``
            uses torch on the CPU.
        weights: ``"same"`` requires that examples, queries and curvature come from the same weights
            of the model, as far as these are known; ``"any"`` does not.
        nonfinite: ``"error"`` raises if scores are infinite or NaN and names the examples;
            ``"keep"`` keeps such scores and ranks them last.

    Raises:
        ArgumentError: an option is invalid, layers do not match, a required statistic is missing
            (says which stage to run), or scores are not finite.
        WeightsMismatchError: examples, queries or curvature come from different weights.
    """
    _check_options(mode, top_k, sign, per_layer, budget)
    one_of("nonfinite", nonfinite, NONFINITE)
    options: dict[str, Any] = {
        "damping": damping,
        "mode": mode,
        "budget": budget,
        "per_layer": per_layer,
        "nonfinite": nonfinite,
    }
    runs = list(ensemble)
    if runs:
        more = {"curvature": curvature, "names": names, "executor": executor, "device": device}
        more |= {"checkpoint": checkpoint, "progress": progress, "weights": weights, "mix": mix}
        if second_moments is not None:
            raise ArgumentError(
                "`second_moments` are those of one run. Hint: ensemble([attribute(...), ...])."
            )
        given = [] if train is None and queries is None else [(train, queries)]
        each = [_pair(run) for run in [*given, *runs]]
        several = [attribute(own, asked, **options, **more) for own, asked in each]
        joined = mean_of(several)
        return joined if top_k is None else joined.top(top_k, sign)
    if train is None or queries is None:
        raise ArgumentError("There are no examples or no queries. Hint: attribute(train, queries).")
    logs, asked = Logs(train, names=names), Logs(queries, names=names)
    if len(logs) == 0 or len(asked) == 0:
        lacking = "queries" if len(logs) else "examples to score"
        raise ArgumentError(
            f"There are no {lacking}. Hint: what a run has logged can be read after run.finalize()."
        )
    shapes = check_together(logs, asked, weights)
    at = logs.usable_device(_device_for(device, queries))
    engine = as_executor(executor)
    how: dict[str, Any] = {"budget": budget, "device": at, "weights": weights}
    special = second_moments is not None or mix is not None
    if special:
        fitted = mixed_curvature(logs, asked, curvature, second_moments, mix, **how)
    else:
        fitted = curvature_for(logs, curvature, **how, executor=engine)
    exact = mode == "l2" or any(dtype == np.float64 for dtype, _ in shapes.values())
    options |= {"device": at, "top_k": top_k, "sign": sign}
    found = []
    for batch in asked.batches(budget // 4):
        job = prepare_job(logs, batch, fitted, exact, **options)
        folder = None if checkpoint is None else absolute(checkpoint) / job.fingerprint()
        scores = _join_parts(_run_job(job, engine, folder, progress), job)
        if per_layer and top_k is not None:
            scores = dataclasses.replace(scores, layers=_layer_scores(scores, job))
        found.append(scores)
    about: dict[str, Any] = {
        "mode": mode,
        "curvature": fitted.kind,
        "damping": {name: fitted.added(name, damping) for name in logs.layers},
        "train": logs.path,
        "queries": asked.path,
        "examples": len(logs),
        "weights": {
            "train": [each.weights for each in logs.provenance],
            "queries": [each.weights for each in asked.provenance],
        },
    }
    if special:
        about |= {"second_moments": second_moments is not None, "mix": repr(mix), "unit": None}
    if top_k is not None:
        about |= {"top_k": int(top_k), "sign": sign}
    return dataclasses.replace(_join_queries(found), about=about)


def _pair(run: Any) -> tuple[Any, Any]:
    """Return the examples and queries of a run."""
    if hasattr(run, "store_path") and hasattr(run, "get_log"):
        asked = run.get_log()
        run.finalize()
        return run.store_path, asked
    if isinstance(run, tuple) and len(run) == 2:
        return run
    raise ArgumentError(
        f"`ensemble` takes pairs (train, queries), or runs that logged queries; got {run!r:.200}."
    )


def _check_options(mode: Any, top_k: Any, sign: Any, per_layer: bool, budget: Any) -> None:
    one_of("mode", mode, MODES)
    check_top_k(1 if top_k is None else top_k, sign, "top_k")
    if per_layer and mode != "dot":
        raise ArgumentError('Only dot products are sums over layers. Hint: mode="dot".')
    positive_integer("budget", budget)


def _device_for(device: Any, queries: Any) -> ArrayDevice:
    """Return the device that was chosen, or else the accelerator that holds the queries."""
    if device is not None or not isinstance(queries, Mapping) or not queries:
        return device_named(device)
    own = device_of(next(iter(queries.values())))
    return NUMPY if own.device.startswith("cpu") else own


def _run_job(
    job: ScoringJob, executor: Executor | None, folder: Path | None, show: bool
) -> list[Scores]:
    """Return the scores of all parts in order, computed by the executor or by own threads."""
    files = min(job.logs.files, MOST_PARTS)
    if executor is not None:
        job = dataclasses.replace(job, threads=threads_for(executor, cores(job.device)))
        count = files if folder is not None else parts_for(executor, files, MOST_PARTS)
        return _run_parts(job, count, executor, folder, show, own=False)
    with several(files, job.device) as (threads, workers):
        own = dataclasses.replace(job, budget=max(1, job.budget // workers))
        fine = folder is not None or show
        count = files if fine else min(files, 1 if workers == 1 else PARTS_PER_THREAD * workers)
        return _run_parts(own, count, threads, folder, show, own=True)


def _run_parts(
    job: ScoringJob,
    count: int,
    executor: Executor | None,
    folder: Path | None,
    show: bool,
    *,
    own: bool,
) -> list[Scores]:
    """Return the scores of all parts in order; load those that were saved."""
    parts = [(index, count) for index in range(count)]
    saved = {} if folder is None else {p: folder / f"{p[0]:05d}-of-{count:05d}" for p in parts}
    found: dict[tuple[int, int], Scores] = {
        part: load_scores(saved[part])
        for part in agreed(executor, functools.partial(_saved_parts, saved))
    }
    todo = [part for part in parts if part not in found]
    with bars.shown("scoring", len(parts), quiet=not show) as bar:
        for _ in found:
            bar.step(0, 0)
        for part, scores in _compute_parts(job, todo, executor, own):
            found[part] = scores
            if part in saved and leads(executor):
                _save_part(scores, saved[part])
            bar.step(scores.values.shape[1], 0)
    return [found[part] for part in parts]


def _saved_parts(saved: Mapping[tuple[int, int], Path]) -> list[tuple[int, int]]:
    """Return the parts that an earlier call saved."""
    return [part for part, path in saved.items() if (path / "store.json").exists()]


def _compute_parts(
    job: ScoringJob, todo: Sequence[tuple[int, int]], executor: Executor | None, own: bool
) -> Iterator[tuple[tuple[int, int], Scores]]:
    """Yield the scores of each part as soon as they are computed."""
    if executor is None:
        for part in todo:
            yield part, job.run(part)
        return
    stop = threading.Event()
    more = (stop,) if own else ()  # an event does not reach other processes
    run = job.run
    futures = {executor.submit(run, part, *more): part for part in todo}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        stop.set()
        for future in futures:
            future.cancel()


def _save_part(scores: Scores, path: Path) -> None:
    """Write a part atomically."""
    try:
        with new_folder(path) as aside:
            scores.save(aside)
    except FileExistsError:  # another process saved the same part first
        if not (path / "store.json").exists():
            raise


def _join_parts(parts: Sequence[Scores], job: ScoringJob) -> Scores:
    """Join the scores of consecutive parts of the examples."""
    filled = [part for part in parts if part.values.shape[1]]
    if job.top_k is not None:
        best = TopK.joined([TopK(job.top_k, job.sign, p.values, p.ids) for p in filled])
        assert best.scores is not None
        return Scores(job.ids, best.ids, best.scores)
    ids = np.concatenate([part.ids for part in filled])
    values = np.concatenate([part.values for part in filled], 1)
    layers = {
        name: np.concatenate([part.layers[name] for part in filled], 1)
        for name in (job.layers if job.per_layer else ())
    }
    return Scores(job.ids, ids, values, layers)


def _join_queries(found: Sequence[Scores]) -> Scores:
    """Join the scores of consecutive batches of queries."""
    first = found[0]
    if len(found) == 1:
        return first
    return Scores(
        np.concatenate([each.queries for each in found]),
        first.ids if first.whole else np.concatenate([each.ids for each in found]),
        np.concatenate([each.values for each in found]),
        {n: np.concatenate([each.layers[n] for each in found]) for n in first.layers},
    )


def _layer_scores(scores: Scores, job: ScoringJob) -> dict[str, np.ndarray]:
    """Compute the scores of each layer for the best examples only, within the budget."""
    unique, index = np.unique(scores.ids, return_inverse=True)
    index = index.reshape(scores.ids.shape)
    layers = {name: np.empty(scores.ids.shape) for name in job.layers}
    most = max(1, job.budget // 2 // (8 * job.logs.elements + 16 * len(job.ids)))
    for start in range(0, len(unique), most):
        own = unique[start : start + most]
        part = job.logs.gather(own.tolist() if own.dtype.kind == "U" else own)
        queries, ranks = np.nonzero((index >= start) & (index < start + most))
        for name, values in layers.items():
            layer = job.of_layer(name, part)
            values[queries, ranks] = layer[queries, index[queries, ranks] - start]
    return layers
