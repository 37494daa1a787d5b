"""The jobs of :class:`Background`: logs from outside of programs that wait to be written."""

from __future__ import annotations

import collections
import contextlib
import itertools
import math
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from sawlog._turn import Signal
from sawlog.jax._core.arrays import host_array, is_elsewhere
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._runs.background import ROOM, Job
from sawlog.jax._runs.call_forms import Leaves
from sawlog.jax._runs.runs import LoggerRun
from sawlog.jax._saving.records import to_records
from sawlog.jax._transforms.tap_host import receivers
from sawlog.jax._transforms.tap_payload import Payload
from sawlog.records import Entries, Records
from sawlog.sinks import AsyncError

_NUMBER = 16  # bytes of the largest number
_SOONEST, _LATEST = 0.001, 0.05  # seconds between checks of a program with callbacks


class ArraysJob(Job):
    """A job that waits for arrays of a device."""

    def __init__(self, leaves: Sequence[Any]) -> None:
        self._arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        self.nbytes = sum(map(_nbytes, leaves))

    @property
    def on_device(self) -> bool:
        """Whether any leaf is an array of a device."""
        return bool(self._arrays)

    def is_ready(self) -> bool:
        """Return whether all arrays are computed."""
        return all(map(_is_ready, self._arrays))

    def wait(self) -> None:
        """Return when all arrays are computed."""
        for array in self._arrays:
            with contextlib.suppress(Exception):  # raised again when the array is read
                array.block_until_ready()


def _nbytes(leaf: Any) -> int:
    shape = leaf.shape
    return math.prod(shape) * leaf.dtype.itemsize if shape else _NUMBER


def _is_ready(array: Any) -> bool:
    try:
        return bool(array.is_ready())
    except Exception:  # raised again when the array is read
        return True


def on_host(logs: logdict) -> logdict:
    """Convert all leaves to numpy, so that writing computes nothing on a device."""
    return jax.tree.map(host_array, logs)


class LogJob(ArraysJob):
    """The logs of one call for one run."""

    def __init__(self, run: LoggerRun, logs: Leaves) -> None:
        super().__init__(logs.leaves)
        self.run = run
        self._logs = logs

    def write(self, behind: Sequence[Job]) -> int:
        """Write these logs, and those of the same run right behind them."""
        own: list[Any] = [self, *itertools.takewhile(self._goes_along, behind)]
        found: list[Leaves] = []
        for each in own:
            with self.run.keeping():
                leaves = [_on_host(leaf) for leaf in each._logs.leaves]
                found.append(Leaves(leaves, each._logs.tree, each._logs.layout))
        for _, alike in itertools.groupby(found, _kind):
            _write_together(self.run, list(alike))
        return len(own)

    def _goes_along(self, other: Job) -> bool:
        return isinstance(other, LogJob) and other.run is self.run


def _on_host(leaf: Any) -> Any:
    """Do what ``host_array`` does, faster for many numbers."""
    if type(leaf) is np.ndarray or is_elsewhere(leaf):
        return leaf
    plain = isinstance(leaf, jax.Array) and isinstance(leaf.dtype, np.dtype)
    return np.asarray(leaf) if plain else host_array(leaf)


def _kind(logs: Leaves) -> Any:
    """Return a key that is equal for logs that differ only in their numbers."""
    return logs.tree, [(leaf.dtype, leaf.shape) for leaf in logs.leaves]


def _write_together(run: LoggerRun, several: Sequence[Leaves]) -> None:
    """Write logs of one kind, if possible in one call; if that fails, one by one."""
    together = None
    if len(several) > 1:
        with contextlib.suppress(Exception):  # raised again, and kept, one by one
            together = _joined(several)
    if together is None:
        return _write_each(run, several)
    try:
        run.write_records(together)
    except (ExceptionGroup, AsyncError) as error:  # some sinks wrote it, or the error holds it
        run.keep(error)
    except Exception as error:
        before = len(run.background_errors)
        _write_each(run, several)
        if len(run.background_errors) == before:
            run.keep(error)


def _write_each(run: LoggerRun, several: Sequence[Leaves]) -> None:
    for each in several:
        with run.keeping():
            run.write(each.logs)


def _joined(several: Sequence[Leaves]) -> Records | None:
    """Concatenate logs of one kind to records; None if they have more than values and steps.

    The records of the first one have the names, step axes and attributes of all.
    """
    first, layout = several[0].logs, several[0].layout
    odd = layout.masked or any(slot.counted for slot in layout.slots)
    odd = odd or any(each.layout.empty for each in several)
    odd = odd or not all(isinstance(x, np.ndarray | np.generic) for x in several[0].leaves)
    if odd or any(part.outer or part.stacked != part.slot.stacked for part in first._parts()):
        return None
    columns = zip(*(each.leaves for each in several), strict=True)
    values = [[next(columns) for _ in jax.tree.leaves(value)] for value in first.values()]
    steps = [[next(columns) for _ in slot.steps] for slot in layout.slots]
    records = iter(to_records(first).items())
    found: dict[str, Entries] = {}
    for slot, own, axes in zip(layout.slots, values, steps, strict=True):
        put = np.concatenate if slot.stacked else _stacked
        together = [put(each) for each in axes]
        for leaves in own:
            name, like = next(records)
            at = dict(zip(like.steps, together, strict=True))
            found[name] = Entries(put(leaves), at, None, like.attrs)
    return Records(found) if next(records, None) is None else None


def _stacked(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Stack arrays of one dtype and shape, faster than ``np.stack`` for many numbers."""
    first = arrays[0]
    if first.ndim or first.dtype.kind not in "biuf":
        return np.stack(arrays)
    return np.frombuffer(bytearray().join([array.tobytes() for array in arrays]), first.dtype)


class LanesJob(ArraysJob):
    """The logs of one call for many runs, which are the axes in front."""

    def __init__(self, runs: Sequence[LoggerRun], logs: logdict, axes: int) -> None:
        super().__init__(jax.tree.leaves(logs))
        self._runs, self._logs, self._axes = runs, logs, axes

    def write(self, behind: Sequence[Job]) -> int:
        """Write its lane to each run."""
        try:
            leaves, tree = jax.tree.flatten(on_host(self._logs))
            leaves = [leaf.reshape(-1, *leaf.shape[self._axes :]) for leaf in leaves]
        except Exception as error:
            for run in self._runs:
                run.keep(error)
            return 1
        for lane, run in enumerate(self._runs):
            with run.keeping():
                run.write(jax.tree.unflatten(tree, [leaf[lane] for leaf in leaves]))
        return 1


class TapJob(Job):
    """The logs that one call of a tapped program sends, while it runs.

    The job is added before the program starts, which names it by a number. After an error in
    writing, it discards the rest.
    """

    def __init__(self, run: LoggerRun) -> None:
        self.run = run
        self.number = receivers.enter(self)
        self._sent: collections.deque[tuple[Payload, list[np.ndarray]]] = collections.deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self._news, self._taken = Signal(), Signal()
        self._ends: list[Any] | None = None
        self._broken = False

    @property
    def on_device(self) -> bool:
        """True: a program is running."""
        return True

    def deliver(self, payload: Payload, arrays: Sequence[Any]) -> None:
        """Add what a callback sent; wait while too much of it is not written."""
        own = [np.array(array) for array in arrays]  # a callback's arrays are invalid after it
        size = sum(array.nbytes for array in own)
        while self._bytes + size > ROOM and self._sent:
            self._taken.wait(lambda: not self._sent)
        with self._lock:
            self._sent.append((payload, own))
            self._bytes += size
        self._news.ring()

    def ends_with(self, arrays: list[Any]) -> None:
        """Tell that the program was started; it has ended when these arrays are computed."""
        self._ends = arrays
        self._news.ring()

    def _is_over(self) -> bool:
        return self._ends is not None and all(map(_is_ready, self._ends))

    def is_ready(self) -> bool:
        """Return whether logs were sent, or the program has ended."""
        return bool(self._sent) or self._is_over()

    def wait(self) -> None:
        """Return when logs were sent, or the program has ended."""
        pause = _SOONEST
        while not self.is_ready():
            self._news.wait(lambda: bool(self._sent), pause)
            pause = min(2 * pause, _LATEST)

    def write(self, behind: Sequence[Job]) -> int:
        """Write what was sent; the job is done when the program has ended."""
        over = self._is_over()  # first, so that nothing can be sent after the last check
        while self._sent:
            with self._lock:
                payload, arrays = self._sent.popleft()
                self._bytes -= sum(array.nbytes for array in arrays)
            if not self._broken:
                self._write(payload, arrays)
        self._taken.ring()
        if over:
            receivers.leave(self.number)
        return int(over)

    def _write(self, payload: Payload, arrays: list[np.ndarray]) -> None:
        try:
            self.run.check_complete(payload)
            for logs in payload.logs(arrays):
                self.run.write(logs)
        except BaseException as error:
            error.add_note(f"sawlog: {self.run.where(payload)}")
            self.run.keep(error)
            self._broken = True
