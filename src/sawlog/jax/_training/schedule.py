"""Which states to keep so that a run can be read backwards within a memory budget.

A run of ``T`` steps is divided into segments of ``k`` steps. The states at the start of segments
are checkpoints; the states inside of one are computed again when the segment is read backwards.
With a checkpoint for each segment every step is computed twice. With fewer, segments in between are
computed again from an earlier checkpoint; binomial splitting needs the fewest steps for that. If
there is room for the state before each step, nothing is computed again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from sawlog.errors import ArgumentError

#: The state before each step is kept by default, if all of them fit into as many bytes.
AUTO = 10**9


@dataclasses.dataclass(frozen=True)
class ReplayPlan:
    """How a run is divided.

    Args:
        steps: The number of steps of the run.
        length: The number of steps of a segment.
        slots: How many checkpoints are kept at once, besides the first state.
        every: Whether the state before each step is kept, so that no step is computed again.
    """

    steps: int
    length: int
    slots: int
    every: bool = False

    @property
    def segments(self) -> int:
        """The number of segments."""
        return -(-self.steps // self.length)

    def span(self, segment: int) -> tuple[int, int]:
        """Return the first step of a segment, and the step after its last."""
        return segment * self.length, min(self.steps, (segment + 1) * self.length)

    @property
    def states(self) -> int:
        """The largest number of states in memory."""
        # One segment is replayed in any case, to compare it with the recorded one.
        return self.length + self.slots + 2 + (self.steps if self.every else 0)

    def recorded(self) -> list[int]:
        """Return the segments whose first state is kept while the run is recorded, in order."""
        kept, low, slots = [], 0, self.slots
        while slots > 0 and self.segments - low > 1:
            low += _left(self.segments - low, slots)
            slots -= 1
            kept.append(low)
        return kept


def plan_for(
    steps: int, memory: Literal["auto", "sqrt", "log"] | int, state_bytes: int
) -> ReplayPlan:
    """Return the plan for a budget: states in the square root or logarithm of steps, or bytes."""
    length = _even(steps)
    root = ReplayPlan(steps, length, max(0, -(-steps // length) - 1))
    every = dataclasses.replace(root, every=True)
    if memory == "auto":
        return every if every.states * state_bytes <= AUTO else root
    if memory == "sqrt":
        return root
    if memory == "log":
        count = max(1, math.ceil(math.log2(steps + 1)))
        return ReplayPlan(steps, count, min(count, max(0, -(-steps // count) - 1)))
    room = int(memory) // max(1, state_bytes) - 2
    if room < 2:
        raise ArgumentError(
            f"`memory` has room for {max(0, room + 2)} states of {state_bytes:,} bytes; at least 4 "
            "are needed. Hint: give more memory, or spill= a folder for checkpoints."
        )
    if every.states <= room + 2:
        return every
    # The longest segments that leave a slot for each other segment recompute every step once.
    fits = [n for n in range(room - 1, 0, -1) if -(-steps // n) - 1 <= room - n]
    for length in [*(n for n in fits if steps % n == 0), *fits][:1]:
        return ReplayPlan(steps, length, -(-steps // length) - 1)
    half = max(1, room // 2)
    return ReplayPlan(steps, half, min(room - half, -(-steps // half) - 1))


def _even(steps: int) -> int:
    """Return about the square root of the number of steps; if possible, a divisor of it.

    Segments of one length are compiled once, which takes longer than many runs.
    """
    root = max(1, math.isqrt(max(0, steps - 1)) + 1)
    near = [n for n in range(-(-2 * root // 3), root * 3 // 2 + 1) if n and steps % n == 0]
    return min(near, key=lambda n: (n + steps // n, -n), default=root)


def backwards(low: int, high: int, slots: int, kept: list[int]) -> Iterator[tuple[str, int, int]]:
    """Yield what to do to visit segments ``low .. high - 1`` from the last to the first.

    Actions are ``("advance", from, to)``: compute the state at segment ``to`` from the checkpoint
    ``from`` and keep it; ``("reverse", segment, segment)``: read a segment backwards from its
    checkpoint; and ``("drop", segment, segment)``: forget a checkpoint. ``kept`` are the
    checkpoints above ``low`` that exist already, in order.
    """
    if len(kept) == high - low - 1:  # all exist: nothing to compute in between
        for segment in range(high - 1, low, -1):
            yield "reverse", segment, segment
            yield "drop", segment, segment
        high = low + 1
    while high - low > 1:
        if kept:
            middle, kept = kept[0], kept[1:]
        else:
            middle = low + _left(high - low, slots) if slots > 0 else high - 1
            yield "advance", low, middle
        yield from backwards(middle, high, slots - 1, kept)
        yield "drop", middle, middle
        high, kept = middle, []
    yield "reverse", low, low


def _left(count: int, slots: int) -> int:
    """Return how many of ``count`` segments to leave before the next of ``slots`` checkpoints."""
    repeats = 1
    while math.comb(slots + repeats, slots) < count:
        repeats += 1
    return max(1, min(count - 1, math.comb(slots + repeats - 1, slots)))
