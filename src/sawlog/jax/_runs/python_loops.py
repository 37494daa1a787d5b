"""Logging from outside of programs: a Python loop hands over what it logs, and goes on."""

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
from sawlog.jax._runs.jobs import Lanes, Logged, Tapped
from sawlog.jax._runs.runs import Run
from sawlog.jax._transforms.tap_host import on_device

_SMALL = 1024  # items
_TAKEN = "What this call logs is taken all the same: do not log it again."
_NOT_RUN = "This call ran nothing and logged nothing: call it again to go on."


def log(run: Run, logs: Leaves) -> None:
    """Write logs to a run: now, if they and all before them are on the host, or else later.

    Errors of earlier calls are raised after that, so that these logs are not lost.
    """
    if run.background.is_empty and not any(map(_is_on_device, logs.leaves)):
        run.write(logs.logs)
    else:
        run.background.put(Logged(run, _copied(logs)))
    run.raise_troubles(_TAKEN)


def spool(run: Run, spooled: Callable[..., Any], args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a spooled function, and leave its logs to be written.

    Errors of earlier calls are raised before that, so that no output is lost.
    """
    run.raise_troubles(_NOT_RUN)
    try:
        out, logs = spooled(*args, **kwargs)
    except BaseException:
        run.failed = True
        raise
    run.failed = False
    run.background.put(Logged(run, _apart(Leaves.of(logs), args, kwargs)))
    return out


def run(
    background: Background,
    runs: Sequence[Run],
    program: Callable[..., Any],
    lanes: tuple[int, ...],
    args: tuple,
    kwargs: dict[str, Any],
) -> tuple[Any, logdict]:
    """Call a program that returns its logs, of one run or of one for each lane."""
    for each in runs:
        each.raise_troubles(_NOT_RUN)
    with watched(*runs):
        out, logs = program(lanes, *args, **kwargs)
    own = _apart(Leaves.of(logs), args, kwargs)
    background.put(Lanes(runs, own.logs, len(lanes)) if lanes else Logged(runs[0], own))
    return out, logs


def tap(run: Run, program: Program, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Call a tapped program, and leave what it sends to be written."""
    run.raise_troubles(_NOT_RUN)
    job = Tapped(run)
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
def watched(*runs: Run) -> Iterator[None]:
    """A program that writes to runs: where it raises they failed, unless a later one works."""
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
    """The logs, in memory that the caller does not have: JAX may return what it was given."""
    given = jax.tree_util.tree_leaves((args, kwargs) if kwargs else args)
    shared = not set(map(id, given)).isdisjoint(map(id, logs.leaves))
    return _copied(logs) if shared else logs


def _copied(logs: Leaves) -> Leaves:
    """The same in memory of its own: the caller may change or donate what it logged."""
    leaves = list(logs.leaves)
    places = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, np.ndarray):
            leaves[i] = leaf.copy()
        elif _is_on_device(leaf):
            host = _if_at_hand(leaf)
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


def _if_at_hand(array: Any) -> np.ndarray | None:
    """A small array that a CPU has computed already; a program that copies it takes longer."""
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
