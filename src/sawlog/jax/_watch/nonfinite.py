"""Find the first equation that made a NaN or an infinity.

Every equation has a number; a table has its source line. The state is the number of the first
equation that made a NaN from operands without one, or an infinity from finite operands; it is -1
before. The interpreter carries the state through loops, branches and calls.
"""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from sawlog._validate import refuse
from sawlog.jax import _compat
from sawlog.jax._watch.measures import emit

#: The longest text of a source line, in bytes.
WIDTH = 160

#: Equations whose output cannot be a NaN or infinite unless an operand is.
_HARMLESS = frozenset(
    {
        *("abs", "ceil", "clamp", "erf", "floor", "logistic", "max", "min", "neg", "round", "sign"),
        *("and", "eq", "ge", "gt", "is_finite", "le", "lt", "ne", "not", "or", "tanh", "xor"),
        *("broadcast_in_dim", "concatenate", "dynamic_slice", "dynamic_update_slice", "iota"),
        *("expand_dims", "reduce_max", "reduce_min", "reshape", "rev", "select_n", "slice"),
        *("split", "squeeze", "transpose", "imag", "real", "bitcast_convert_type"),
        *("copy", "copy_p", "name", "optimization_barrier", "pvary", "sharding_constraint"),
        *("log_cotangent", "log_cotangent_of", "stop_gradient"),
    }
)


def source_text(array: Any) -> str:
    """Return the text of ``nonfinite/source``, which :func:`sawlog.jax.watch` logs as bytes.

    >>> import jax.numpy as jnp, sawlog
    >>> f = sawlog.jax.watch(lambda x: jnp.log(x - 1))
    >>> y, logs = sawlog.spool(f)(jnp.ones(2))
    >>> sawlog.jax.source_text(logs["nonfinite/source"]).rpartition(": ")[2]
    'log made -inf or inf'

    Raises:
        ArgumentError: the array is not such a text, or several of them.
    """
    data = np.asarray(array)
    if data.dtype != np.uint8 or data.ndim != 1:
        found = f"{data.dtype} of the shape {data.shape}"
        refuse("array", "one text of nonfinite/source: uint8 with one axis", found, "texts[0]")
    return bytes(data).rstrip(b"\0").decode("utf-8", errors="replace")


class Nonfinite:
    """Numbers equations, and updates the state."""

    def __init__(self) -> None:
        self._texts: list[tuple[str, str]] = []
        self._flags: dict[int, tuple[Any, Any, Any]] = {}

    @staticmethod
    def start() -> Any:
        """Return the state before any equation."""
        return jnp.int32(-1)

    def forget(self) -> dict[int, tuple[Any, Any, Any]]:
        """Forget what is known about values of this trace, and return it."""
        known, self._flags = self._flags, {}
        return known

    def recall(self, known: dict[int, tuple[Any, Any, Any]]) -> None:
        """Know again about values of an outer trace."""
        self._flags = known

    def argument(self, state: Any, name: str, value: Any) -> Any:
        """Return the state after an argument was looked at."""
        if not _can_be(value):
            return state
        nan, infinite = self._of(value)
        state = self._update(state, nan, f"argument {name}", "is NaN")
        return self._update(state, infinite, f"argument {name}", "is infinite")

    def equation(self, state: Any, eqn: Any, line: str, values: list[Any], outs: list[Any]) -> Any:
        """Return the state after an equation."""
        results = [out for out in outs if _can_be(out)]
        if not results or eqn.primitive.name in _HARMLESS:
            return state
        operands = [self._of(value) for value in values if _can_be(value)]
        had_nan = _any([nan for nan, _ in operands])
        had_any = _any([had_nan, *(infinite for _, infinite in operands)])
        nan = _any([self._of(out)[0] for out in results])
        infinite = _any([self._of(out)[1] for out in results])
        name = eqn.primitive.name
        state = self._update(state, _and_not(nan, had_nan), line, f"{name} made NaN")
        return self._update(state, _and_not(infinite, had_any), line, f"{name} made -inf or inf")

    def emit(self, state: Any, prefix: str, where: str) -> None:
        """Log the source line of the first equation, if there is one."""
        if not self._texts:
            return
        texts = np.zeros((len(self._texts), WIDTH), np.uint8)
        for row, (line, what) in zip(texts, self._texts, strict=True):
            text = _shortened(line, what)
            row[: len(text)] = np.frombuffer(text, np.uint8)
        lines = np.array([_number(line) for line, _ in self._texts], np.int32)
        found = jnp.maximum(state, 0)
        values = {
            f"{prefix}nonfinite/line": jnp.asarray(lines)[found],
            f"{prefix}nonfinite/source": jnp.asarray(texts)[found],
        }
        emit(values, where, state >= 0)

    def _update(self, state: Any, made: Any, line: str, what: str) -> Any:
        if made is False:
            return state
        self._texts.append((line, what))
        return jnp.where((state < 0) & made, jnp.int32(len(self._texts) - 1), state)

    def _of(self, value: Any) -> tuple[Any, Any]:
        """Return whether a value has a NaN, and whether it has an infinity."""
        known = self._flags.get(id(value))
        if known is None:
            if not _compat.is_tracer(value):
                array = np.asarray(value)
                flags = bool(np.any(array != array)), bool(np.any(np.abs(array) == np.inf))
            else:
                fixed = lax.stop_gradient(value)
                flags = jnp.any(jnp.isnan(fixed)), jnp.any(jnp.isinf(fixed))
            known = self._flags[id(value)] = (value, *flags)
        return known[1], known[2]


def _can_be(value: Any) -> bool:
    """Whether values of this type can be NaN or infinite."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return isinstance(value, (float, complex))
    return bool(jnp.issubdtype(dtype, jnp.inexact)) and getattr(value, "size", 1) > 0


def _any(flags: list[Any]) -> Any:
    """Return whether any flag holds; False, not an array, if none can."""
    flags = [flag for flag in flags if flag is not False]
    if any(flag is True for flag in flags):
        return True
    result: Any = False
    for flag in flags:
        result = flag if result is False else result | flag
    return result


def _and_not(flag: Any, other: Any) -> Any:
    if flag is False or other is True:
        return False
    return flag if other is False else flag & ~other


def _shortened(line: str, what: str) -> bytes:
    """Return the text; the beginning of a long path is left out."""
    end = f": {what}".encode()[:WIDTH]
    start = line.encode()
    room = WIDTH - len(end)
    return (start if len(start) <= room else b"..." + start[len(start) - room + 3 :]) + end


def _number(line: str) -> int:
    """Return the number of a source line; -1 if the text has none."""
    found = re.search(r":(\d+)(?::\d+)? \(", line)
    return int(found.group(1)) if found else -1
