"""A small language of programs with logs, compiled to JAX and interpreted in plain Python.

A program transforms one float `x`. `compile_program` makes a JAX function of it that calls
`sawlog.log`; `interpret` runs it on a Python float and returns what was logged, entry by entry, in
the order of execution. The interpreter is the oracle: it knows no JAX and no sawlog, and what it
knows of control flow are the `for`, `while` and `if` of Python.

Because `x` is the only thing that flows, the gradient of a program is the product of the local
derivatives along the way. So the oracle also knows every cotangent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

import sawlog

from .oracle_language import (
    FUNCTIONS,
    Assign,
    Cond,
    Expr,
    Grad,
    Index,
    Jit,
    Jvp,
    Log,
    LogCotangent,
    LogReduced,
    Program,
    Remat,
    Scan,
    Seq,
    Switch,
    While,
)


@dataclass(frozen=True)
class Scope:
    """What a program can see, besides `x`."""

    start: Any
    index: Any


def compile_program(program: Program) -> Callable[[Any], Any]:
    """The JAX function `f(x) -> x` of a program."""
    return lambda x: _trace(program, x, Scope(x, jnp.int32(0)))


def _trace(program: Program, x: Any, scope: Scope) -> Any:
    def inside(body: Program, **changes: Any) -> Callable[[Any], Any]:
        return lambda x: _trace(body, x, replace(scope, **changes))

    match program:
        case Log(items, step):
            steps = {} if step is None else {"step": _traced(step, x, scope)}
            sawlog.log({key: _traced(value, x, scope) for key, value in items}, **steps)
        case LogReduced(key, value, reduction):
            sawlog.log(key, _traced(value, x, scope), reduction=reduction)
        case LogCotangent(key, step):
            steps = {} if step is None else {"step": _traced(step, x, scope)}
            x = sawlog.log_cotangent(key, x, **steps)
        case Assign(fun, plus):
            x = FUNCTIONS[fun][0](x) + plus
        case Seq(parts):
            for part in parts:
                x = _trace(part, x, scope)
        case Scan(length, body, reverse):
            xs = jnp.arange(length)
            x, _ = lax.scan(lambda x, i: (inside(body, index=i)(x), None), x, xs, reverse=reverse)
        case While():
            x = _trace_while(program, x, scope)
        case Cond(above, yes, no):
            x = lax.cond(x > above, inside(yes), inside(no), x)
        case Switch(edges, branches):
            which = sum((x > edge).astype(jnp.int32) for edge in edges)
            x = lax.switch(which, [inside(branch) for branch in branches], x)
        case Jit(body):
            x = jax.jit(inside(body))(x)
        case Remat(body):
            x = jax.checkpoint(inside(body))(x)
        case Grad(body):
            x, slope = jax.value_and_grad(inside(body))(x)
            x = x + 0 * slope
        case Jvp(body):
            x, slope = jax.jvp(inside(body), (x,), (jnp.ones_like(x),))
            x = x + 0 * slope
    return x


def _trace_while(program: While, x: Any, scope: Scope) -> Any:
    def condition(state: Any) -> Any:
        i, x = state
        if program.in_condition is not None:
            _trace(program.in_condition, x, replace(scope, index=i))
        return (i < program.most) & (x < program.below)

    def body(state: Any) -> Any:
        i, x = state
        return i + 1, _trace(program.body, x, replace(scope, index=i))

    return lax.while_loop(condition, body, (jnp.int32(0), x))[1]


def _traced(expr: Expr, x: Any, scope: Scope) -> Any:
    if isinstance(expr, Index):
        return scope.index + jnp.int32(expr.plus)
    value = jnp.float32(expr.plus)
    # a factor of nought leaves no trace, so that some values do not depend on x at all
    for factor, of in ((expr.of_x, x), (expr.of_start, scope.start), (expr.of_index, scope.index)):
        value = value + factor * of if factor else value
    return value


# --- The interpreter ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One thing that was logged."""

    key: str
    value: float
    step: float | None = None


@dataclass
class Run:
    """What happened when a program ran."""

    out: float = 0.0
    calls: list[tuple[Entry, ...]] = field(default_factory=list)
    """Every call of `log`, in order."""
    way: list[float | tuple[str, float | None]] = field(default_factory=list)
    """The local derivatives along the way, and where a cotangent is logged: its key and step."""
    margin: float = math.inf
    """How far the nearest decision was from going the other way."""

    @property
    def entries(self) -> list[Entry]:
        """Every entry, in order."""
        return [entry for call in self.calls for entry in call]

    def of(self, key: str) -> list[Entry]:
        """The entries of one name."""
        return [entry for entry in self.entries if entry.key == key]

    @property
    def slope(self) -> float:
        """The derivative of the output."""
        return math.prod(each for each in self.way if isinstance(each, float))

    def cotangents(self) -> list[Entry]:
        """What `log_cotangent` logs when the output is differentiated, the last place first."""
        found, slope = [], 1.0
        for each in reversed(self.way):
            if isinstance(each, float):
                slope *= each
            else:
                found.append(Entry(each[0], slope, each[1]))
        return found


def interpret(program: Program, x: float) -> Run:
    """Run a program on a Python float."""
    run = Run()
    run.out = _step(program, x, Scope(x, 0), run)
    return run


def _step(program: Program, x: float, scope: Scope, run: Run) -> float:
    match program:
        case Log(items, step):
            now = None if step is None else _number(step, x, scope)
            run.calls.append(tuple(Entry(key, _number(v, x, scope), now) for key, v in items))
        case LogReduced(key, value, _):
            run.calls.append((Entry(key, _number(value, x, scope)),))
        case LogCotangent(key, step):
            run.way.append((key, None if step is None else _number(step, x, scope)))
        case Assign(fun, plus):
            _, value, derivative = FUNCTIONS[fun]
            run.way.append(float(derivative(x)))
            x = value(x) + plus
        case Seq(parts):
            for part in parts:
                x = _step(part, x, scope, run)
        case Scan(length, body, reverse):
            for i in reversed(range(length)) if reverse else range(length):
                x = _step(body, x, replace(scope, index=i), run)
        case While(most, below, body, in_condition):
            i = 0
            while True:
                here = replace(scope, index=i)
                if in_condition is not None:
                    _step(in_condition, x, here, run)
                if i >= most or not _less(x, below, run):
                    break
                x = _step(body, x, here, run)
                i += 1
        case Cond(above, yes, no):
            x = _step(yes if _less(above, x, run) else no, x, scope, run)
        case Switch(edges, branches):
            which = sum(_less(edge, x, run) for edge in edges)
            x = _step(branches[which], x, scope, run)
        case Jit(body) | Remat(body) | Grad(body) | Jvp(body):
            x = _step(body, x, scope, run)
    return x


def _less(x: float, y: float, run: Run) -> bool:
    run.margin = min(run.margin, abs(x - y))
    return x < y


def _number(expr: Expr, x: float, scope: Scope) -> float:
    if isinstance(expr, Index):
        return scope.index + expr.plus
    of_index = expr.of_index * scope.index
    return expr.of_x * x + expr.of_start * scope.start + of_index + expr.plus


def by_key(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries of each name, in order."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.key, []).append(entry)
    return found
