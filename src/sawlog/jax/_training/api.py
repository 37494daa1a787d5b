"""``through_training``: how training examples changed a model, by differentiating training."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

from sawlog import _validate
from sawlog._paths import absolute
from sawlog.errors import RoughTrainingWarning
from sawlog.influence import Scores
from sawlog.influence._averages import _average as averages
from sawlog.jax._training import arguments, roughness
from sawlog.jax._training.run_bank import RunBank
from sawlog.jax._training.run_data import is_paired
from sawlog.jax._training.runner import Runner, RunScores
from sawlog.jax._training.stopping import Budget, finish_runs

StrPath = str | os.PathLike[str]


def through_training(
    data: Any,
    queries: Any = None,
    *,
    init: Callable[[Any], Any],
    loss: Callable[..., Any] | None = None,
    optimizer: Any = None,
    step: Callable[..., Any] | None = None,
    metric: Callable[..., Any] | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    batches: Any = None,
    runs: int = 10,
    subset: Any = 0.5,
    seed: int = 0,
    average: Literal["robust", "mean"] = "robust",
    error: float | None = None,
    seconds: float | None = None,
    ids: Sequence[Any] | None = None,
    query_ids: Sequence[Any] | None = None,
    memory: Literal["auto", "sqrt", "log"] | int | str = "auto",
    query_batch: int | None = None,
    spill: StrPath | None = None,
    path: StrPath | None = None,
    loop: Literal["scan", "python"] = "scan",
    final_state: Any = None,
    check: bool = True,
    devices: Sequence[Any] | None = None,
    progress: bool = True,
) -> Scores:
    """Differentiate training: how the metric of each query depends on each training example.

    A training run is a function of weights on its examples. Each run is trained, replayed and read
    backwards, which gives the derivative of the metric of each query by the weight of each
    example. Scores are minus the derivative, times the number of examples ``n``. As everywhere in
    ``sawlog.influence``, a positive score says that the example lowers the metric: it helps, if the
    metric is a loss. Divided by ``n``, it estimates how much the metric would increase without the
    example.

    By default, scores are averaged over runs with different seeds on random halves of the data. A
    single run can be rough; the average predicts retraining. The other half is part of the batches
    with weight 0, so that each run has a derivative for each example.

    Describe training by ``loss`` and ``optimizer``, or by ``step``.

    Args:
        data: Arrays with one row for each training example, as a pytree.
        queries: Arrays with one row for each query, as a pytree. None if ``metric`` needs none.
        init: ``init(key)`` returns the parameters, or the state that ``step`` changes.
        loss: ``loss(params, batch)`` or ``loss(params, batch, key)`` returns the loss of each
            example, ``[batch]``. Steps minimize ``sum(weights * losses) / sum(weights)``.
        optimizer: An optax optimizer, or a function ``update(grads, params) -> params``.
        step: ``step(state, batch, weights)`` or ``step(state, batch, weights, key)`` returns the
            next state. It must use the weights of the examples, ``[batch]``: those with weight 0
            must not change the state.
        metric: ``metric(params, batch)`` returns a number for each query of a batch, which
            depends on that query only; with ``step``, ``metric(state, batch)``. The default is
            ``loss``. Without queries, ``metric(params)`` returns a vector.
        batch_size: The number of examples of a batch, with ``epochs``.
        epochs: How often each example is used, in random order. Examples at the end of an epoch
            that do not fill a batch are left out of it; ``batches`` can have smaller batches.
        batches: Instead, the indices of the examples of each batch: ``[steps, batch]``, or a list
            of batches, or a function of a random key that returns them.
        runs: How many runs to average, at most.
        subset: The share of the data in each run, None for all data, an array of weights
            ``[runs, n]``, or a function that returns the weights of run ``i``, ``[n]``. With 0.5,
            runs are pairs of complementary halves.
        seed: The seed of all runs.
        average: ``"robust"`` scales down runs with extreme derivatives. As long as runs disagree,
            it gives smaller weights to what early steps contribute, and adds influence functions
            at the end of each run. It ranks best with few runs. ``"mean"`` has no bias: choose it
            to predict the effect of a group.
        error: Stop if standard errors are below this share of the scores (of their root mean
            square over examples, median over queries).
        seconds: Start no further run after this time.
        ids: The id of each example; 0, 1, ... by default.
        query_ids: The id of each query; 0, 1, ... by default.
        memory: How many states are kept: ``"sqrt"`` or ``"log"`` of the number of steps, or a
            number of bytes such as ``"2GB"``. ``"auto"`` keeps the state before each step if all
            of them fit into 1 GB, else ``"sqrt"``.
        query_batch: How many queries are read backwards at once. The default is 256 MB of states.
        spill: A folder for checkpoints. By default, they are kept in memory.
        path: A store for the scores of each run. A second call resumes, or adds more runs.
            Processes that make the same call share the runs.
        loop: ``"python"`` calls ``step`` step by step, as a Python loop does.
        final_state: The state in which run 0 must end, bit for bit, or :class:`ReplayError`.
        check: Measure how rough the first run is. This takes as long as one to three runs of
            training.
        devices: JAX devices over which runs are distributed.
        progress: Whether to show a progress bar.

    Returns:
        Scores of all examples with standard errors. ``about`` has ``runs``, ``roughness`` and
        ``trust``, a sentence on whether a single run can be trusted.

    Raises:
        ArgumentError: An argument is invalid, or the state is in half precision.
        ReplayError: A replayed run differs from the recorded one.

    >>> import jax.numpy as jnp, numpy as np, optax
    >>> x = np.linspace(-1, 1, 8).astype(np.float32)
    >>> def loss(w, batch):
    ...     return (w * batch[0] - batch[1]) ** 2
    >>> scores = through_training(
    ...     (x, 2 * x), (x[:2], 2 * x[:2]), init=lambda key: jnp.zeros(()), loss=loss,
    ...     optimizer=optax.sgd(0.1), batch_size=2, epochs=2, runs=4, progress=False)
    >>> scores.values.shape, bool((scores.values.sum(1) > 0).all())
    ((2, 8), True)
    """
    count = arguments.rows_of("data", data)
    names = arguments.ids_of("ids", ids, count)
    if queries is not None:
        arguments.ids_of("query_ids", query_ids, arguments.rows_of("queries", queries))
    runs = _validate.positive_integer("runs", runs)
    _validate.one_of("average", average, ("robust", "mean"))
    runner = arguments.runner_of(
        data,
        queries,
        init=init,
        loss=loss,
        optimizer=optimizer,
        step=step,
        metric=metric,
        batch_size=batch_size,
        epochs=epochs,
        batches=batches,
        subset=subset,
        seed=seed,
        memory=memory,
        query_batch=query_batch,
        spill=spill,
        loop=loop,
        final_state=final_state,
        guess=average == "robust" and (runs >= averages.FEWEST or path is not None),
    )
    about = {} if path is None else arguments.fingerprint(runner, data, queries)
    bank = RunBank(None if path is None else absolute(path), about)
    budget = Budget(runs, error, seconds, average, is_paired(subset))
    try:
        bank.check_weights(runner.weights, runs)
        if 0 in bank:
            runner.check_end()
        finish_runs(runner, bank, budget, devices, quiet=not progress)
        bank.check_weights(runner.weights, runs)  # also of runs that another process has trained
        runner.check_end()
    finally:
        bank.close()
    done = bank.results(runs)
    found = bank.average(runs, average, budget.paired)
    notes = _trust(runner, done[0], len(done)) if check else {}
    return Scores(
        arguments.ids_of("query_ids", query_ids, len(found.values)),
        names,
        found.values,
        about={
            "method": "through_training",
            "mode": "dot",
            "runs": len(done),
            "average": average,
            "weights": found.weights.tolist(),
            **notes,
        },
        standard_errors=found.errors,
        members=found.members,
    )


def _trust(runner: Runner, first: RunScores, runs: int) -> dict[str, Any]:
    """Measure how rough the first run is; warn if it is the only one."""
    found = roughness.agreement(runner, first, 1 if len(first.values) >= 8 else 3, runner.seed)
    if runs == 1 and not found.trusted:
        warnings.warn(found.sentence(), RoughTrainingWarning, stacklevel=3)
    return {"roughness": 1 - found.cosine, "trust": found.sentence()}
