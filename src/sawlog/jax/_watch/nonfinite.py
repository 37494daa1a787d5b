"""Find the first equation that made a NaN or an infinity.

Every array has a grade: 0 if it is finite, 1 if it has an infinity, 2 if it has a NaN. An equation
made something if an output has a higher grade than all operands. Equations have numbers, and a
table has their source lines. The state is twice the number of the first equation that made
something, plus 1 for a NaN; it is -1 before. The interpreter carries the state through loops,
branches and calls.
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
        *("split", "squeeze", "transpose", "imag", "real"),
        *("copy", "copy_p", "name", "optimization_barrier", "pvary", "sharding_constraint"),
        *("log_cotangent", "log_cotangent_of", "stop_gradient"),
    }
)


#: Equations whose output has the grade of their only operand.
_SAME_GRADE = frozenset(
    {
        *("abs", "copy", "copy_p", "expand_dims", "log_cotangent", "name", "neg", "reshape"),
        *("rev", "sharding_constraint", "squeeze", "transpose"),
    }
)


def is_harmless(jaxpr: Any) -> bool:
    """Return whether no equation of a program can make a NaN or an infinity."""
    return all(
        all(is_harmless(inner.jaxpr) for inner in programs)
        if (programs := _compat.inner_programs(eqn) if eqn.params else [])
        else eqn.primitive.name in _HARMLESS or not any(_may_be(v.aval) for v in eqn.outvars)
        for eqn in jaxpr.eqns
    )


def source_text(array: Any) -> str:
    """Return the text of ``nonfinite/source``, which :func:`sawlog.jax.watch` logs as bytes.

    >>> import jax.numpy as jnp, sawlog
    >>> f = sawlog.jax.watch(lambda x: jnp.log(x - 1))
    >>> y, logs = sawlog.spool(f)(jnp.ones(2))
    >>> sawlog.jax.source_text(logs["nonfinite/source"]).rpartition(": ")[2]
    'log made an infinity'

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
        self._grades: dict[int, tuple[Any, Any]] = {}
        self._pending: list[tuple[int, Any, Any]] = []

    @staticmethod
    def start() -> Any:
        """Return the state before any equation."""
        return jnp.int32(-1)

    def enter(self) -> tuple[Any, Any]:
        """Start with a program of its own trace; return what is known about the outer one."""
        before = self._grades, self._pending
        self._grades, self._pending = {}, []
        return before

    def leave(self, before: tuple[Any, Any]) -> None:
        """Return to the outer program."""
        self._grades, self._pending = before

    def argument(self, name: str, value: Any) -> None:
        """Check an argument of the function."""
        if _can_be(value):
            self._add(f"argument {name}", "is", self._grade(value), np.int32(0))

    def equation(self, eqn: Any, line: str, values: list[Any], outs: list[Any]) -> None:
        """Check the outputs of an equation."""
        name = eqn.primitive.name
        if name in _SAME_GRADE and len(values) == 1 and (known := self._grades.get(id(values[0]))):
            self._grades[id(outs[0])] = (outs[0], known[1])
        if name in _HARMLESS:
            return
        results = [self._grade(out) for out in outs if _can_be(out)]
        if results:
            before = [self._grade(value) for value in values if _can_be(value)]
            self._add(line, f"{name} made", _largest(results), _largest(before))

    def update(self, state: Any) -> Any:
        """Return the state after all equations so far."""
        if not self._pending:
            return state
        numbers, after, before = zip(*self._pending, strict=True)
        self._pending = []
        grades = jnp.stack(after)
        made = lax.gt(grades, jnp.stack(before))
        first = lax.argmax(made, 0, np.int32)
        found = 2 * jnp.asarray(numbers, np.int32)[first] + (grades[first] == 2)
        return jnp.where((state < 0) & made[first], found.astype(np.int32), state)

    def emit(self, state: Any, prefix: str, where: str) -> None:
        """Log the source line of the first equation, if there is one."""
        if not self._texts:
            return
        texts = np.zeros((2 * len(self._texts), WIDTH), np.uint8)
        for i, (line, what) in enumerate(self._texts):
            for kind, row in zip(("an infinity", "a NaN"), texts[2 * i : 2 * i + 2], strict=True):
                text = _shortened(line, f"{what} {kind}")
                row[: len(text)] = np.frombuffer(text, np.uint8)
        lines = np.repeat([_number(line) for line, _ in self._texts], 2).astype(np.int32)
        found = jnp.maximum(state, 0)
        values = {
            f"{prefix}nonfinite/line": jnp.asarray(lines)[found],
            f"{prefix}nonfinite/source": jnp.asarray(texts)[found],
        }
        emit(values, where, state >= 0)

    def _add(self, line: str, what: str, after: Any, before: Any) -> None:
        self._pending.append((len(self._texts), after, before))
        self._texts.append((line, what))

    def _grade(self, value: Any) -> Any:
        known = self._grades.get(id(value))
        if known is None:
            known = self._grades[id(value)] = (value, _grade(value))
        return known[1]


def _grade(value: Any) -> Any:
    if not _compat.is_tracer(value):
        array = np.asarray(value)
        nan = bool(np.any(array != array))
        return np.int32(2 if nan else np.any(np.abs(array) == np.inf))
    value = lax.stop_gradient(value)
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        return _largest([_grade(lax.real(value)), _grade(lax.imag(value))])
    infinite = lax.convert_element_type(lax.bitwise_not(lax.is_finite(value)), np.int32)
    grades = infinite + lax.convert_element_type(lax.ne(value, value), np.int32)
    return lax.reduce_max(grades, tuple(range(grades.ndim)))


def _largest(grades: list[Any]) -> Any:
    result: Any = np.int32(0)
    for grade in grades:
        result = lax.max(result, grade)
    return result


def _can_be(value: Any) -> bool:
    """Return whether values of this type can be NaN or infinite."""
    return isinstance(value, (float, complex)) or _may_be(value)


def _may_be(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return (
        dtype is not None
        and bool(jnp.issubdtype(dtype, jnp.inexact))
        and getattr(value, "size", 1) > 0
    )


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
