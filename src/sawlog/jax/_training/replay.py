"""Record a run forwards, then read it backwards: derivatives of metrics by example weights."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.jax._training.checkpoints import Checkpoints
from sawlog.jax._training.deterministic import check_same, equal, refuse
from sawlog.jax._training.program import TrainingProgram
from sawlog.jax._training.schedule import ReplayPlan, backwards
from sawlog.jax._training.states import Arrays

#: Into how many parts a run is divided at most, each as long as all later ones.
PARTS = 6


@dataclasses.dataclass(frozen=True)
class RunInputs:
    """What one run is trained on.

    Args:
        order: The indices of the examples of each batch, ``[T, B]``. Empty places have ``-1 - i``,
            and the data of example ``i``, with weight 0.
        weights: The weight of each example, ``[n]``.
        keys: A random key for each step, ``[T]``.
    """

    order: Any
    weights: Any
    keys: Any

    @property
    def arrays(self) -> tuple[Any, Any, Any]:
        """The order, the weights and the keys."""
        return self.order, self.weights, self.keys


class Replay:
    """The compiled functions of a program on one data set.

    Args:
        program: The training program.
        data: Arrays with one row for each example.
        by_hand: Call ``advance`` step by step, as a Python loop does, not in a ``scan``.
    """

    def __init__(self, program: TrainingProgram, data: Any, by_hand: bool = False) -> None:
        self.program, self.by_hand = program, by_hand
        self._pull_back = program.pull_back
        self.data = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)), data)
        # Recorded and replayed by one compiled function: others could round differently.
        self._forward = self._loop if by_hand else jax.jit(self._scan, static_argnums=4)
        self._backward = jax.jit(self._reverse, static_argnums=6, donate_argnums=(1, 2))

    def reverse(self) -> None:
        """Read further runs backwards by the derivative that is right for any gradient."""
        assert self.program.by_reverse is not None
        self._pull_back = self.program.by_reverse

    # -- forwards -----------------------------------------------------------------------------

    def batch(self, data: Any, weights: Any, rows: Any) -> tuple[Any, Any]:
        """Return the data and the weights of a batch."""
        there = rows >= 0
        safe = jnp.where(there, rows, -1 - rows)
        return jax.tree.map(lambda x: x[safe], data), jnp.where(there, weights[safe], 0)

    def _advance(self, arrays: Arrays, batch: Any, weights: Any, key: Any) -> Arrays:
        """Take one step."""
        after = self.program.advance(arrays, batch, weights, key)
        self.program.layout.check_types(arrays, after)
        return after

    def _scan(
        self, arrays: Arrays, inputs: tuple[Any, Any, Any], data: Any, begin: Any, length: int
    ) -> tuple[Arrays, Arrays]:
        """Return the state after some steps, and the states before each of them."""

        def body(arrays: Arrays, step: tuple[Any, Any]) -> tuple[Arrays, Arrays]:
            batch, own = self.batch(data, inputs[1], step[0])
            return self._advance(arrays, batch, own, step[1]), arrays

        return jax.lax.scan(body, arrays, _part(inputs, begin, length))

    def _loop(
        self, arrays: Arrays, inputs: tuple[Any, Any, Any], data: Any, begin: int, length: int
    ) -> tuple[Arrays, Arrays]:
        before = []
        for step in range(begin, begin + length):
            before.append(arrays)
            batch, own = self.batch(data, inputs[1], inputs[0][step])
            given = jax.tree.map(jnp.copy, arrays)  # a jitted step may donate its arguments
            arrays = self._advance(given, batch, own, inputs[2][step])
        return arrays, jax.tree.map(lambda *leaves: jnp.stack(leaves), *before)

    def train(
        self, arrays: Arrays, inputs: RunInputs, plan: ReplayPlan, data: Any = None
    ) -> Arrays:
        """Return the state after the last step, also on other data."""
        for segment in range(plan.segments):
            arrays, _ = self.segment(arrays, inputs, plan, segment, data)
        return arrays

    def segment(
        self, arrays: Arrays, inputs: RunInputs, plan: ReplayPlan, segment: int, data: Any = None
    ) -> tuple[Arrays, Arrays]:
        """Return the state after a segment, and the states before each of its steps."""
        begin, end = plan.span(segment)
        own = self.data if data is None else data
        return self._forward(arrays, inputs.arrays, own, begin, end - begin)

    # -- backwards ----------------------------------------------------------------------------

    def _reverse(
        self,
        before: Arrays,
        cotangents: list[Any],
        scores: Any,
        inputs: tuple[Any, Any, Any],
        data: Any,
        begin: Any,
        length: int,
    ) -> tuple[list[Any], Any]:
        """Move cotangents ``[Q, ...]`` from the end of a segment to its start; add to scores."""

        def body(carry: tuple[list[Any], Any], step: Any) -> tuple[tuple[list[Any], Any], None]:
            cotangents, scores = carry
            arrays, rows, key = step
            batch, own = self.batch(data, inputs[1], rows)
            cotangents, slopes = self._pull_back(arrays, batch, own, key, cotangents)
            slopes = jnp.where(rows >= 0, slopes, 0).astype(scores.dtype)
            return (cotangents, scores.at[:, jnp.where(rows >= 0, rows, 0)].add(slopes)), None

        xs = (before, *_part(inputs, begin, length))
        return jax.lax.scan(body, (cotangents, scores), xs, reverse=True)[0]

    def derivatives(
        self,
        recording: Recording,
        cotangents: list[Any],
        progress: Callable[[], None] = lambda: None,
    ) -> np.ndarray:
        """Return the derivative by each weight of each metric whose cotangents these are.

        Args:
            recording: The run.
            cotangents: For each array of the last state, ``[Q, *shape]``.
            progress: Called after each segment.

        Returns:
            ``[A, Q, n]``: what each part of the run contributes, the last steps first. Parts are
            those of :func:`ages`. Their sum is the derivative.
        """
        inputs, plan, kept = recording.inputs, recording.plan, recording.checkpoints
        count = cotangents[0].shape[0]
        zeros = functools.partial(jnp.zeros, (count, len(inputs.weights)), inputs.weights.dtype)
        scores, parts, firsts, checks = zeros(), [], ages(plan), []
        ends = recording.last
        for action, first, second in backwards(0, plan.segments, plan.slots, recording.at_start()):
            if action == "advance":
                arrays = kept.get(first)
                for segment in range(first, second):
                    arrays, _ = self.segment(arrays, inputs, plan, segment)
                kept.put(second, arrays)
            elif action == "drop":
                recording.forget(first)
            else:
                start = kept.get(first)
                before = recording.inside.get(first)
                if before is None or first == plan.segments - 1:
                    again, before = self.segment(start, inputs, plan, first)
                    if recording.complete:  # do not wait for the answer
                        checks.append((first, equal(ends, again)))
                    else:
                        check_same(ends, again, self.program.layout, plan.span(first))
                begin, end = plan.span(first)
                cotangents, scores = self._backward(
                    before, cotangents, scores, inputs.arrays, self.data, begin, end - begin
                )
                ends = start
                if first in firsts:
                    parts.append(np.asarray(scores))
                    scores = zeros()
                progress()
        for segment, same in checks:
            if not bool(same):
                again, _ = self.segment(kept.get(segment), inputs, plan, segment)
                refuse(recording.end_of(segment), again, self.program.layout, plan.span(segment))
        return np.stack(parts)


def _part(inputs: tuple[Any, Any, Any], begin: Any, length: int) -> tuple[Any, Any]:
    """Return the order and the keys of some steps."""
    order, _, keys = inputs
    cut = jax.lax.dynamic_slice_in_dim
    return cut(order, begin, length), cut(keys, begin, length)


def ages(plan: ReplayPlan) -> list[int]:
    """Return the first segments of the parts of a run: the last steps, then twice as many, ...

    What early steps contribute passes through more steps, and is rougher. Parts are reported
    separately so that averages can give them different weights.
    """
    firsts: list[int] = []
    length = max(1, round(plan.segments / 2 ** (PARTS - 1)))
    low = plan.segments
    while low > 0:
        low = max(0, low - length) if len(firsts) < PARTS - 1 else 0
        firsts.append(low)
        length = plan.segments - low
    return firsts


class Recording:
    """A run that was trained once, with the checkpoints to replay it.

    Checkpoints of the forward pass are kept for further batches of queries, if all segments have
    one. Otherwise reading backwards overwrites them, and they are computed again. If there is room,
    the states before all steps are kept as well.
    """

    def __init__(
        self,
        replay: Replay,
        start: Arrays,
        inputs: RunInputs,
        plan: ReplayPlan,
        checkpoints: Checkpoints,
    ) -> None:
        self.inputs, self.plan, self.checkpoints = inputs, plan, checkpoints
        self._marks = set(plan.recorded())
        self.complete = len(self._marks) == plan.segments - 1
        self._there = {0}
        self.inside: dict[int, Arrays] = {}
        checkpoints.put(0, start)
        arrays = start
        for segment in range(plan.segments):
            if segment in self._marks:
                checkpoints.put(segment, arrays)
                self._there.add(segment)
            arrays, before = replay.segment(arrays, inputs, plan, segment)
            if plan.every:
                self.inside[segment] = before
        self.last = arrays

    def at_start(self) -> list[int]:
        """Return the checkpoints that exist, without the first."""
        return sorted(self._there - {0})

    def end_of(self, segment: int) -> Arrays:
        """Return the recorded state after a segment."""
        last = segment == self.plan.segments - 1
        return self.last if last else self.checkpoints.get(segment + 1)

    def forget(self, segment: int) -> None:
        """Drop a checkpoint, unless there is room for all of them."""
        if self.complete:
            return
        self._there.discard(segment)
        self.checkpoints.drop(segment)
