"""A small language of programs with logs: its words, and what each means."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from jax import numpy as jnp


@dataclass(frozen=True)
class Value:
    """What is logged: `x * of_x + x0 * of_start + i * of_index + plus`, `x0` being the input."""

    of_x: float = 1.0
    of_start: float = 0.0
    of_index: float = 0.0
    plus: float = 0.0


@dataclass(frozen=True)
class Index:
    """The index of the innermost loop around, an int32; 0 outside of loops."""

    plus: int = 0


Expr = Value | Index


@dataclass(frozen=True)
class Log:
    """`log({key: value, ...}, step=...)`."""

    items: tuple[tuple[str, Expr], ...]
    step: Expr | None = None


@dataclass(frozen=True)
class LogReduced:
    """`log(key, value, reduction=...)`."""

    key: str
    value: Expr
    reduction: str


@dataclass(frozen=True)
class LogCotangent:
    """`x = log_cotangent(key, x)`."""

    key: str
    step: Expr | None = None


@dataclass(frozen=True)
class Assign:
    """`x = fun(x) + plus`; see `FUNCTIONS`."""

    fun: str
    plus: float


@dataclass(frozen=True)
class Seq:
    """One after the other."""

    parts: tuple[Program, ...]


@dataclass(frozen=True)
class Scan:
    """`lax.scan` over the indices."""

    length: int
    body: Program
    reverse: bool = False


@dataclass(frozen=True)
class While:
    """`lax.while_loop`: while `i < most and x < below`; may log in its condition."""

    most: int
    below: float
    body: Program
    in_condition: Log | None = None


@dataclass(frozen=True)
class Cond:
    """`lax.cond(x > above, ...)`."""

    above: float
    yes: Program
    no: Program


@dataclass(frozen=True)
class Switch:
    """`lax.switch` of three branches: below both edges, between them, above."""

    edges: tuple[float, float]
    branches: tuple[Program, Program, Program]


@dataclass(frozen=True)
class Jit:
    """`jax.jit`."""

    body: Program


@dataclass(frozen=True)
class Remat:
    """`jax.checkpoint`."""

    body: Program


@dataclass(frozen=True)
class Grad:
    """`jax.value_and_grad`, of which the value goes on."""

    body: Program


@dataclass(frozen=True)
class Jvp:
    """`jax.jvp`, of which the primal value goes on."""

    body: Program


Program = (
    Log
    | LogReduced
    | LogCotangent
    | Assign
    | Seq
    | Scan
    | While
    | Cond
    | Switch
    | Jit
    | Remat
    | Grad
    | Jvp
)


# smooth, bounded or shrinking, with derivatives of at most one: rounding errors do not grow
FUNCTIONS: dict[str, tuple[Callable, Callable, Callable]] = {
    "sin": (jnp.sin, math.sin, math.cos),
    "half": (lambda x: 0.5 * x, lambda x: 0.5 * x, lambda x: 0.5),
    "flip": (lambda x: -x, lambda x: -x, lambda x: -1.0),
    "bump": (
        lambda x: x * x / (1 + x * x),
        lambda x: x * x / (1 + x * x),
        lambda x: 2 * x / (1 + x * x) ** 2,
    ),
}


def children(program: Program) -> Iterator[Program]:
    """The programs directly inside one."""
    for each in fields(program):
        value = getattr(program, each.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Program):
                yield part


def walk(program: Program) -> Iterator[Program]:
    """A program and all programs inside it."""
    yield program
    for child in children(program):
        yield from walk(child)


def has(program: Program, *kinds: type) -> bool:
    """Whether there is such a thing anywhere inside."""
    return any(isinstance(part, kinds) for part in walk(program))


def keys_of(program: Program) -> set[str]:
    """Every name that the program could log, forwards."""
    found = set()
    for part in walk(program):
        if isinstance(part, Log):
            found |= {key for key, _ in part.items}
        elif isinstance(part, LogReduced):
            found.add(part.key)
    return found


def keys_in_while(program: Program) -> set[str]:
    """Every name that is logged in some loop of unknown length."""
    inside = [part for part in walk(program) if isinstance(part, While)]
    return set().union(*map(keys_of, inside))


def reductions_of(program: Program) -> dict[str, str]:
    """The names whose logs ask for a reduction."""
    return {part.key: part.reduction for part in walk(program) if isinstance(part, LogReduced)}
