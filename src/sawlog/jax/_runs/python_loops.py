"""Logging from outside of programs: a Python loop leaves its logs to a thread and continues."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._core.primitive import tap_effect
from sawlog.jax._core.program import Program
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._runs.background import Background
from sawlog.jax._runs.call_forms import Leaves
from sawlog.jax._runs.jobs import LanesJob, LogJob, TapJob
from sawlog.jax._runs.runs import LoggerRun
from sawlog.jax._transforms.tap_host import on_device

_SMALL = 1024  # items
_TAKEN = "The logs of this call were taken: do not log them again."
_NOT_RUN = "This call ran nothing and logged nothing: call it again to continue."


def log(run: LoggerRun, logs: Leaves) -> None:
    """Write logs to a run: now if all arrays are on the host and no job waits, otherwise later.

    Errors of earlier calls are raised after that, so that these logs are not lost.
    """
    if run.background.is_empty and not any(map(_is_on_device, logs.leaves)):
        run.write(logs.logs)
    else:
        run.background.put(LogJob(run, _copied(logs)))
    run.raise_background_errors(_TAKEN)


def spool(run: LoggerRun, spooled: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a spooled function, and let the thread write its logs.

    Errors of earlier calls are raised before that, so that no output is lost.
    """
    run.raise_background_errors(_NOT_RUN)
    try:
        out, logs = spooled(*args, **kwargs)
    except BaseException:
        run.failed = True
        raise
    run.failed = False
    run.background.put(LogJob(run, _apart(Leaves.of(logs), args, kwargs)))
    return out


def run(
    background: Background,
    runs: Sequence[LoggerRun],
    program: Callable[..., Any],
    lanes: tuple[int, ...],
    args: tuple,
    kwargs: dict[str, Any],
) -> tuple[Any, logdict]:
    """Call a program that returns its logs, for one run or one run for each lane."""
    for each in runs:
        each.raise_background_errors(_NOT_RUN)
    with watched(*runs):
        out, logs = program(lanes, *args, **kwargs)
    own = _apart(Leaves.of(logs), args, kwargs)
    background.put(LanesJob(runs, own.logs, len(lanes)) if lanes else LogJob(runs[0], own))
    return out, logs


def tap(run: LoggerRun, program: Program, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a tapped program, and let the thread write what it sends."""
    run.raise_background_errors(_NOT_RUN)
    job = TapJob(run)
    run.background.put(job)
    ends: list[Any] = []
    try:
        with watched(run):
            out = program(args, kwargs, on_device(job.number))[0]
        ends = _compat.order_tokens(tap_effect)
    finally:
        job.ends_with(ends)
    return out


@contextlib.contextmanager
def watched(*runs: LoggerRun) -> Iterator[None]:
    """Mark runs as failed if the program that writes to them raises, until a later one succeeds."""
    try:
        yield
    except BaseException:
        for run in runs:
            run.failed = True
        raise
    for run in runs:
        run.failed = False


def _is_on_device(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array)


def _apart(logs: Leaves, args: tuple, kwargs: dict[str, Any]) -> Leaves:
    """Copy logs that share memory with the arguments: JAX may return an argument itself."""
    given = jax.tree_util.tree_leaves((args, kwargs) if kwargs else args)
    shared = not set(map(id, given)).isdisjoint(map(id, logs.leaves))
    return _copied(logs) if shared else logs


def _copied(logs: Leaves) -> Leaves:
    """Copy logs: the caller may change or donate what it logged."""
    leaves = list(logs.leaves)
    places = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, np.ndarray):
            leaves[i] = leaf.copy()
        elif _is_on_device(leaf):
            host = _if_computed(leaf)
            if host is None:
                places.append(i)
            else:
                leaves[i] = host
    if not places:
        return Leaves(leaves, logs.tree, logs.layout)
    try:
        copies = _copy_all([leaves[i] for i in places])
    except ValueError:  # on different devices
        copies = [_copy(leaves[i]) for i in places]
    for i, copy in zip(places, copies, strict=True):
        leaves[i] = copy
    return Leaves(leaves, logs.tree, logs.layout)


def _if_computed(array: Any) -> np.ndarray | None:
    """Copy a small array that a CPU has already computed; a program that copies it is slower."""
    shape = array.shape
    if (shape and math.prod(shape) > _SMALL) or not isinstance(array.dtype, np.dtype):
        return None
    if not _is_on_cpu(array.sharding) or not array.is_ready():
        return None
    return np.array(array)  # np.asarray would keep it from being donated


@functools.lru_cache(64)
def _is_on_cpu(sharding: Any) -> bool:
    here = sharding.is_fully_addressable
    return here and all(device.platform == "cpu" for device in sharding.device_set)


def _copy(array: Any) -> Any:
    return jnp.copy(array) if _compat.key_kind(array) is None else jax.random.clone(array)


@functools.partial(jax.jit, inline=False)
def _copy_all(arrays: list[Any]) -> list[Any]:
    return [_copy(array) for array in arrays]
