"""One run after another: train, read backwards, return the scores."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.jax._training import step_checks
from sawlog.jax._training.checkpoints import Checkpoints, InFolder, InMemory
from sawlog.jax._training.curvature import EndInfluence
from sawlog.jax._training.deterministic import check_final, check_traced
from sawlog.jax._training.program import TrainingProgram
from sawlog.jax._training.queries import Queries
from sawlog.jax._training.replay import Recording, Replay, RunInputs
from sawlog.jax._training.run_data import (
    Order,
    is_share,
    run_inputs,
    run_keys,
    subset_weights,
)
from sawlog.jax._training.schedule import ReplayPlan, plan_for
from sawlog.jax._training.states import Arrays

#: With as many queries, reading a run backwards takes so long that two more trainings are cheap.
MANY_QUERIES = 16
#: The numbers of these further trainings: those of runs are smaller.
FURTHER = 2**29


@dataclasses.dataclass(frozen=True)
class RunScores:
    """The result of one run.

    Args:
        run: The number of the run.
        parts: Minus ``n`` times the derivative by the weights, ``[a, q, n]``: what each part of
            the run contributes, the last steps first. Their sum is the score.
        guesses: Scores of influence functions at the last state and those of further trainings,
            ``[k, q, n]``, NaN if they are not finite; or none, with ``k = 0``.
        metrics: The metric of each query at the end of the run, ``[q]``.
        weights: The weight of each example, ``[n]``.
        seconds: How long it took.
    """

    run: int
    parts: np.ndarray
    guesses: np.ndarray
    metrics: np.ndarray
    weights: np.ndarray
    seconds: float

    @property
    def values(self) -> np.ndarray:
        """The scores, ``[q, n]``."""
        return self.parts.sum(0)


@dataclasses.dataclass
class Runner:
    """All that runs have in common.

    Args:
        program: The training program.
        replay: Its compiled functions.
        order: The order of batches.
        subset: The examples of each run.
        seed: The seed of all runs.
        count: The number of examples.
        metric: The metric, with or without queries.
        queries: The queries, if any.
        memory: The budget for states.
        query_batch: How many queries are read backwards at once; None to choose.
        spill: A folder for checkpoints, or None to keep them in memory.
        final_state: The state that run 0 must end in, or None.
        guess: Whether to compute influence functions at the last state.
    """

    program: TrainingProgram
    replay: Replay
    order: Order
    subset: Any
    seed: int
    count: int
    metric: Callable[..., Any]
    queries: Any
    memory: Any
    query_batch: int | None
    spill: Path | None
    final_state: Any = None
    guess: bool = False
    _looked: bool = dataclasses.field(default=False, init=False)
    _absent: bool = dataclasses.field(default=False, init=False)
    _ended: bool = dataclasses.field(default=False, init=False)

    def on(self, device: Any) -> Runner:
        """Return a runner whose arrays are on another device."""
        with jax.default_device(device):
            replay = Replay(self.program, self.replay.data, self.replay.by_hand)
        return dataclasses.replace(self, replay=replay)

    def weights(self, run: int) -> np.ndarray:
        """Return the weight of each example in one run."""
        return subset_weights(self.subset, self.count, run, self.seed)

    def begin(self, run: int, weights: np.ndarray) -> tuple[Arrays, RunInputs, ReplayPlan]:
        """Return the first state of a run, what it is trained on, and how it is divided."""
        keys = run_keys(self.seed, run)
        start = self.program.start(keys[0])
        inputs = run_inputs(self.order, weights, keys, start[0][0].dtype)
        return start, inputs, plan_for(len(inputs.order), self.memory, state_bytes(start))

    def ends(self, run: int, weights: np.ndarray) -> np.ndarray:
        """Train one run without reading it backwards; return the metrics of the queries."""
        start, inputs, plan = self.begin(run, weights)
        last = self.replay.train(start, inputs, plan)
        return self._metrics(last)

    def run(self, run: int, progress: Callable[[], None] = lambda: None) -> RunScores:
        """Train one run and read it backwards."""
        begun = time.monotonic()
        weights = self.weights(run)
        start, inputs, plan = self.begin(run, weights)
        checkpoints: Checkpoints = InMemory() if self.spill is None else InFolder(self.spill)
        try:
            recording = Recording(self.replay, start, inputs, plan, checkpoints)
            if run == 0:
                self._check_final(recording.last)
            asked = self._asked(recording.last)
            self._check_steps(start, inputs, plan, recording.last)
            lasts = [recording.last, *self._further(run, recording.last, asked.count)]
            parts, guesses = [], []
            for first in range(0, asked.count, self._together(start, asked.count)):
                end = min(asked.count, first + self._together(start, asked.count))
                if self.guess:
                    guesses.append(self._guessed(lasts, first, end))
                slopes = asked.cotangents(recording.last, first, end)
                parts.append(self.replay.derivatives(recording, slopes, progress))
            metrics = self._metrics(recording.last)
        finally:
            checkpoints.close()
        scores = -self.count * np.concatenate(parts, 1)
        check_finite(run, metrics, scores.sum(0), len(inputs.order))
        if run == 0:
            check_nonzero(scores)
        known = [each for each in guesses if each is not None]
        guessed = np.zeros((0, *scores.shape[1:]))
        if known and len(known) == len(guesses):
            guessed = np.concatenate(known, 1)
        return RunScores(run, scores, guessed, metrics, weights, time.monotonic() - begun)

    def check_end(self) -> None:
        """Raise unless run 0 ends in ``final_state``, also if another call has trained it."""
        if self.final_state is not None and not self._ended:
            start, inputs, plan = self.begin(0, self.weights(0))
            self._check_final(self.replay.train(start, inputs, plan))

    def _check_final(self, last: Arrays) -> None:
        if self.final_state is not None:
            check_final(self.final_state, last, self.program.layout)
            self._ended = True

    def _check_steps(
        self, start: Arrays, inputs: RunInputs, plan: ReplayPlan, last: Arrays
    ) -> None:
        """Look once how steps are differentiated, and at the first run with weights of 0."""
        if not self._looked:
            self._looked = True
            self._check_traced(start, inputs, last)
            if step_checks.needs_reverse(self.replay, [start, last], inputs):
                self.replay.reverse()
        if not self._absent:
            self._absent = step_checks.check_absent(
                self.replay, start, inputs, plan, last, self._metrics
            )

    def _check_traced(self, start: Arrays, inputs: RunInputs, last: Arrays) -> None:
        batch, weights = self.replay.batch(self.replay.data, inputs.weights, inputs.order[0])
        step = start, batch, weights, inputs.keys[0]
        check_traced(self.program.advance, step, "A step")
        asked = self._asked(last)
        check_traced(asked.compute, (last, asked.queries), "`metric`")

    def _metrics(self, last: Arrays) -> np.ndarray:
        asked = self._asked(last)
        return np.asarray(asked.values(last, asked.queries))

    def _further(self, run: int, last: Arrays, queries: int) -> list[Arrays]:
        """Return the last states of two further trainings for influence functions, if cheap.

        They differ from each other and from the run in seeds and halves of the data. Influence
        functions at three last states are less noisy than at one.
        """
        drawn = self.subset is None or is_share(self.subset)
        if not self.guess or not drawn or queries < MANY_QUERIES:
            return []
        if not self._end_influence().possible(last, queries):
            return []
        found = []
        for number in (FURTHER + 2 * run, FURTHER + 2 * run + 1):
            start, inputs, plan = self.begin(number, self.weights(number))
            found.append(self.replay.train(start, inputs, plan))
        return found

    def _guessed(self, lasts: list[Arrays], first: int, end: int) -> np.ndarray | None:
        """Return the mean scores of influence functions at these states, for some queries."""
        found = [
            self._end_influence().scores(last, self._asked(last).cotangents(last, first, end))
            for last in lasts
        ]
        known = [each for each in found[1:] if each is not None and np.isfinite(each).all()]
        return None if found[0] is None else np.mean([found[0], *known], 0)

    def _end_influence(self) -> EndInfluence:
        if not hasattr(self, "_ends"):
            self._ends = EndInfluence(self.program, self.replay.data)
        return self._ends

    def _asked(self, last: Arrays) -> Queries:
        if not hasattr(self, "_queries"):
            self._queries = Queries(self.program, self.metric, self.queries, last)
        return self._queries

    def _together(self, start: Arrays, count: int) -> int:
        """Return how many queries are read backwards at once: 256 MB of cotangents by default."""
        if self.query_batch is not None:
            return self.query_batch
        return int(max(1, min(count, 256e6 // max(1, state_bytes(start)))))


def check_finite(run: int, metrics: np.ndarray, values: np.ndarray, steps: int) -> None:
    """Raise if a run diverged, or if its derivatives are infinite or NaN."""
    for found, what in ((metrics, "metric"), (values, "derivative of the metric")):
        odd = np.flatnonzero(~np.isfinite(found.reshape(len(metrics), -1)).all(1))
        if len(odd):
            raise ArgumentError(
                f"The {what} is not finite in run {run}, after {steps} steps, for query {odd[0]}"
                f"{f' and {len(odd) - 1} more' if len(odd) > 1 else ''}. Hint: sqrt, norm and "
                "division at 0 have infinite derivatives; add a small constant inside. Values that "
                "`where` does not select must be finite too; those of optax.radam are not. If "
                "derivatives grow with every step, use a smaller learning rate, or float64 by "
                'jax.config.update("jax_enable_x64", True).'
            )


def check_nonzero(scores: np.ndarray) -> None:
    """Raise if no metric depends on the weight of any example."""
    if not scores.any():
        raise ArgumentError(
            "Every derivative of run 0 is exactly 0: no metric depends on the weight of any "
            "example. Hint: `step` must multiply the loss of each example by its weight, as in "
            "(weights * losses).sum() / weights.sum(), without a comparison, a rounding or a "
            "stop_gradient; `metric` must use the trained parameters; an optimizer that uses only "
            "the signs of gradients, such as Lion, has no derivative (sawlog.influence.validate "
            "measures by retraining). A model that is dead from the start, such as a ReLU that is "
            "0 everywhere, needs another seed=."
        )


def state_bytes(arrays: Arrays) -> int:
    """Return the size of a state."""
    return int(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arrays)))
