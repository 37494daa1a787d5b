"""Host calls that write to runs: how a log on a device reaches its run.

A program names its run by a number, an array like any other: ``vmap`` maps it, ``scan`` carries it
and ``grad`` closes over it. Every write is a host call of the primitive ``tap`` with that number as
one more operand, so under ``vmap`` each lane is written to the run with its number.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from sawlog.jax import _compat
from sawlog.jax._core.arrays import broadcast, leading, reshard, under
from sawlog.jax._core.log_arguments import read_site
from sawlog.jax._core.program import Program, program_for
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._logdict.entries import parts_of_site
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.tap import evaluator, send_to
from sawlog.jax._transforms.tap_host import EntriesPayload
from sawlog.jax._transforms.tap_sampling import Sampling, Send

Start = Callable[[np.ndarray, list[np.ndarray]], int]


def start(begin: Start, words: Any, arrays: list[Any], after: Callable[[], None]) -> Any:
    """Start a run on the host when the traced program gets here, and return its number.

    Under ``vmap`` one host call starts a run for each lane, and then calls ``after``.
    """

    def host(words: Any, arrays: list[Any]) -> np.ndarray:
        words, arrays = np.asarray(words), [np.asarray(array) for array in arrays]
        numbers = np.zeros(words.shape[:-1], np.int32)
        for lane in np.ndindex(numbers.shape):
            numbers[lane] = begin(words[lane], [array[lane] for array in arrays])
        after()
        return numbers

    def over(lanes: tuple[int, ...]) -> Any:
        @jax.custom_batching.custom_vmap
        def call(words: Any, arrays: list[Any]) -> Any:
            numbers = io_callback(host, jax.ShapeDtypeStruct(lanes, np.int32), words, arrays)
            return reshard(numbers, leading(words, len(lanes), np.int32))

        @call.def_vmap
        def mapped(size: int, is_mapped: Any, words: Any, arrays: list[Any]) -> tuple[Any, bool]:
            flags = jax.tree.leaves(is_mapped)
            pairs = zip(jax.tree.leaves((words, arrays)), flags, strict=True)
            lead = next((leading(x, 1) for x, there in pairs if there))

            def grown(x: Any, there: bool) -> Any:
                return x if there else broadcast(x, under(lead, x), first=1)

            words, arrays = jax.tree.map(grown, (words, arrays), tuple(is_mapped))
            return over((size, *lanes))(words, arrays), True

        return call

    return over(())(words, [jax.lax.stop_gradient(array) for array in arrays])


def one_entry(data: Mapping[str, Any], steps: dict[str, Any]) -> logdict:
    """Return a logdict of values that are logged once, as ``spool`` would return it.

    Raises:
        LogValueError: a value cannot be logged.
    """
    site, operands = read_site((dict(data),), steps, as_arrays=False)
    if site is None:
        return logdict()
    array = _host_array if _compat.not_tracing() else jnp.asarray
    named = site.split([array(operand) for operand in operands])
    logs = logdict._of(parts_of_site(site, named))
    if named.mask is not None:
        logs._settle_later()
    return logs


def _host_array(value: Any) -> Any:
    """Convert a value as ``jnp.asarray`` would, but leave host values on the host."""
    if isinstance(value, jax.Array):
        return value
    return np.asarray(value, jax.dtypes.result_type(value))


def tapping(
    fun: Callable[..., Any],
    chosen: Selection,
    prefix: str,
    sampling: Sampling,
    static: dict[str, tuple],
    keep_logs: bool = False,
) -> Program:
    """Return the program of ``fun`` that sends its logs to a run, its hidden argument.

    This is the program of :func:`sawlog.tap` with another way of sending.
    """
    send = functools.partial(send_prefixed, prefix)
    evaluate = evaluator(chosen, sampling, send, keep_logs)
    options = (tapping, chosen, prefix, sampling, tuple(static.items()), keep_logs)
    return program_for(fun, options, lambda: Program(fun, evaluate, hidden=1, options=static))


def send_prefixed(prefix: str, number: Any) -> Send:
    """Return a function that sends to a run, with a prefix in front of every name."""
    plain = send_to(number)

    def send(site: Site | EntriesPayload, operands: Sequence[Any], **params: Any) -> None:
        if isinstance(site, EntriesPayload):
            slots = tuple(dataclasses.replace(s, key=prefix + s.key) for s in site.slots)
            site = dataclasses.replace(site, slots=slots)
        else:
            site = dataclasses.replace(site, keys=tuple(prefix + key for key in site.keys))
            params["keys"] = tuple(prefix + key for key in params["keys"])
        plain(site, operands, **params)

    return send if prefix else plain


class LogdictPayload(EntriesPayload):
    """The payload of a logdict that is sent as it is."""

    def _read(self, arrays: list[Any]) -> logdict:
        logs: logdict = self._unflatten([np.asarray(array) for array in arrays])
        return logs


def send_whole(logs: logdict, number: Any) -> None:
    """Write a logdict to the run with this number when the traced program gets here."""
    leaves, tree = jax.tree.flatten(logs)
    if leaves:
        kinds = tuple(map(_compat.key_kind, leaves))
        send_to(number)(LogdictPayload(tree, logs._layout.slots, kinds), leaves)
