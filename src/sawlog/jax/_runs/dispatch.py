"""How logs on a device find their run.

A program names its run by a number, an array like any other: it is mapped by ``vmap``, carried by
``scan`` and closed over by ``grad``. Every write is a host call of the primitive ``tap`` with that
number as one more operand, so under ``vmap`` each lane goes to the run that its number names.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from sawlog.jax import _compat
from sawlog.jax._core import arrays as _arrays
from sawlog.jax._core.log_arguments import read_site
from sawlog.jax._core.program import Program, program_for
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._logdict.entries import parts_of_site
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.tap import evaluator, send_to
from sawlog.jax._transforms.tap_host import Flush
from sawlog.jax._transforms.tap_sampling import Sampling, Send

Start = Callable[[np.ndarray, list[np.ndarray]], int]


def start(begin: Start, words: Any, arrays: list[Any], after: Callable[[], None]) -> Any:
    """Begin a run on the host when the traced program comes here; its number.

    Under ``vmap`` there is one host call, which begins a run for each lane, and then ``after``.
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
            return _arrays.reshard(numbers, _arrays.leading(words, len(lanes), np.int32))

        @call.def_vmap
        def mapped(size: int, is_mapped: Any, words: Any, arrays: list[Any]) -> tuple[Any, bool]:
            flags = jax.tree.leaves(is_mapped)
            pairs = zip(jax.tree.leaves((words, arrays)), flags, strict=True)
            lead = next((_arrays.leading(x, 1) for x, there in pairs if there))

            def grown(x: Any, there: bool) -> Any:
                return x if there else _arrays.broadcast(x, _arrays.under(lead, x), first=1)

            words, arrays = jax.tree.map(grown, (words, arrays), tuple(is_mapped))
            return over((size, *lanes))(words, arrays), True

        return call

    return over(())(words, [jax.lax.stop_gradient(array) for array in arrays])


def one_entry(data: Mapping[str, Any], steps: dict[str, Any]) -> logdict:
    """A logdict of values that are logged once, as ``spool`` would make it.

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
    """What ``jnp.asarray`` would make of a value, but what is on the host stays there."""
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
    """The program of ``fun`` that sends its logs to a run, whose number it takes besides."""
    send = functools.partial(send_prefixed, prefix)
    evaluate = evaluator(chosen, sampling, send, keep_logs)
    options = (tapping, chosen, prefix, sampling, tuple(static.items()), keep_logs)
    return program_for(fun, options, lambda: Program(fun, evaluate, hidden=1, options=static))


def send_prefixed(prefix: str, number: Any) -> Send:
    """Return a function that sends to a run, with a prefix in front of every name."""
    plain = send_to(number)

    def send(site: Site | Flush, operands: Sequence[Any], **params: Any) -> None:
        if isinstance(site, Flush):
            slots = tuple(dataclasses.replace(s, key=prefix + s.key) for s in site.slots)
            site = dataclasses.replace(site, slots=slots)
        else:
            site = dataclasses.replace(site, keys=tuple(prefix + key for key in site.keys))
            params["keys"] = tuple(prefix + key for key in params["keys"])
        plain(site, operands, **params)

    return send if prefix else plain


class Whole(Flush):
    """A logdict that is sent as it is."""

    def logs(self, arrays: Sequence[Any]) -> Iterator[logdict]:
        """The logdict; only for one lane, and none where that lane did not come here."""
        *own, here = arrays if self.masked else (*arrays, True)
        if here:
            leaves = [_with_keys(*pair) for pair in zip(own, self.key_kinds, strict=True)]
            yield jax.tree.unflatten(self.tree, leaves)


def _with_keys(array: Any, kind: Any) -> Any:
    return np.asarray(array) if kind is None else jax.random.wrap_key_data(array, impl=kind)


def send_whole(logs: logdict, number: Any) -> None:
    """Write to the run with this number when the program that is traced comes here."""
    leaves, tree = jax.tree.flatten(logs)
    if leaves:
        kinds = tuple(map(_compat.key_kind, leaves))
        send_to(number)(Whole(tree, logs._layout.slots, kinds), leaves)
