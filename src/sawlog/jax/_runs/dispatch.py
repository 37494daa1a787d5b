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
from sawlog.jax._core.interpreter import Interpreter
from sawlog.jax._core.log_arguments import read_site
from sawlog.jax._core.primitive import tap_p
from sawlog.jax._core.program import Program, program_for
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams
from sawlog.jax._core.unmatched import Unmatched
from sawlog.jax._logdict.entries import LogdictPart, parts_of_site
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._runs import runs as _runs
from sawlog.jax._transforms.tap import Tap
from sawlog.jax._transforms.tap_buffer import BufferedTap, BufferedWalk
from sawlog.jax._transforms.tap_host import Flush, LogCall, Target
from sawlog.jax._transforms.tap_sampling import Sampling, run_sampled

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

    unmatched = Unmatched()

    def evaluate(closed: Any, values: list[Any], hidden: Sequence[Any]) -> tuple[list[Any], None]:
        unmatched.warn(closed, chosen, **sampling.by_name())
        if not sampling.is_plain:
            send = functools.partial(_send_prefixed, prefix, hidden[0])
            return run_sampled(closed, values, chosen, sampling, send, keep_logs), None
        if sampling.room is None:
            walk = Interpreter(RunTap(chosen, hidden[0], prefix, keep_logs))
            return walk.run(closed.jaxpr, closed.consts, values)[0], None
        buffered = RunBuffer(chosen, hidden[0], prefix, sampling.room, keep_logs)
        outs, left = BufferedWalk(buffered).run(closed.jaxpr, closed.consts, values)
        buffered.flush(left)
        return outs, None

    options = (RunTap, chosen, prefix, sampling, tuple(static.items()), keep_logs)
    return program_for(fun, options, lambda: Program(fun, evaluate, hidden=1, options=static))


class _Dispatch(Target):
    """The target of every logger: gives each lane to the run that its number names."""

    def __init__(self) -> None:
        super().__init__(lambda logs: None, "", hold_errors=False)

    def deliver(self, call: LogCall | Flush, arrays: Sequence[Any]) -> None:
        """The number is the last operand but for the mask."""
        site = call.site if isinstance(call, LogCall) else call
        own = [_data(array) for array in arrays]
        numbers = own.pop(-2 if site.masked else -1)
        one = _of_one_lane(call, numbers.ndim)
        for lane in np.ndindex(numbers.shape):
            if not site.masked or np.any(own[-1][lane]):
                _runs.find(numbers[lane]).deliver(one, [array[lane] for array in own])


def _data(array: Any) -> np.ndarray:
    """A host array; PRNG keys are still such where no program was compiled around the write."""
    kind = _compat.key_kind(array)
    return np.asarray(array if kind is None else jax.random.key_data(array))


def _of_one_lane(call: LogCall | Flush, lanes: int) -> LogCall | Flush:
    if isinstance(call, Flush):
        return dataclasses.replace(call, batch=call.batch - lanes)
    site = dataclasses.replace(call.site, batch=call.site.batch - lanes)
    return dataclasses.replace(call, site=site, lanes=call.lanes - lanes)


_dispatch = _Dispatch()


def _send(site: Site | Flush, operands: Sequence[Any], number: Any, **params: Any) -> None:
    place = len(operands) - int(site.masked)
    operands = [*operands[:place], number, *operands[place:]]
    tap_p.bind(*operands, site=site, target=_dispatch, **params)


def _send_prefixed(
    prefix: str, number: Any, site: Site | Flush, operands: Sequence[Any], **params: Any
) -> None:
    """Send under names with ``prefix`` in front."""
    if isinstance(site, Flush):
        slots = tuple(dataclasses.replace(s, key=prefix + s.key) for s in site.slots)
        site = dataclasses.replace(site, slots=slots)
    else:
        site = dataclasses.replace(site, keys=tuple(prefix + key for key in site.keys))
        params["keys"] = tuple(prefix + key for key in params["keys"])
    _send(site, operands, number, **params)


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
        _send(Whole(tree, logs._layout.slots, kinds), leaves, number)


class RunTap(Tap):
    """The handler that sends each log to a run."""

    def __init__(self, chosen: Selection, number: Any, prefix: str, keep_logs: bool) -> None:
        super().__init__(chosen, number, keep_logs)
        self._prefix = prefix

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Send it from here."""
        del primitive, params
        keys = self._chosen.keys(site)
        if keys:
            kinds = tuple(map(_compat.key_kind, operands))
            named = dataclasses.replace(site, keys=tuple(self._prefix + key for key in site.keys))
            keys = tuple(self._prefix + key for key in keys)
            options = {"keys": keys, "inside": site.batch, "key_kinds": kinds}
            options |= {"gated": True} if site.conditional else {}
            _send(named, operands, self._target, **options)
        return ()


class RunBuffer(BufferedTap):
    """The handler that sends many entries to a run at once."""

    def __init__(
        self, chosen: Selection, number: Any, prefix: str, room: int, keep_logs: bool
    ) -> None:
        super().__init__(chosen, number, room, keep_logs)
        self._prefix = prefix

    def flush_parts(self, parts: Sequence[LogdictPart]) -> None:
        """Send the entries of these keys."""
        if parts:
            parts = [part.renamed(self._prefix + part.slot.key) for part in parts]
            leaves, tree = jax.tree.flatten([(p.value, p.steps, p.mask) for p in parts])
            slots = tuple(dataclasses.replace(part.slot, counted=False) for part in parts)
            _send(Flush(tree, slots, tuple(map(_compat.key_kind, leaves))), leaves, self._target)
