"""Random programs for the interpreter in `oracle.py`, and the comparison with its answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from hypothesis import assume, settings
from hypothesis import strategies as st
from jax import numpy as jnp

import sawlog
from tests.jax.same import gaps
from tests.thorough import seeded_examples

from . import oracle_language
from .oracle import Entry, Run, by_key, compile_program, interpret
from .oracle_language import (
    Assign,
    Cond,
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
    Value,
    While,
)

PLENTY = 1000
"""Room for all entries of the largest program."""

LANES = 3
MODES = ("mean", "sum", "min", "max", "first", "last", "replace", "count", "std", "var")
ORDERLY = ("first", "mean")
"""The reductions that steps follow; for all others the last step counts."""


def examples(number: int) -> settings:
    return seeded_examples(number if number > 50 else max(2, number // 8), number)


EDGES = (-0.413, 0.137, 0.571)
SHIFTS = (-0.731, 0.219, 0.647)
STARTS = (-1.291, -0.373, 0.083, 0.457, 0.913, 1.737)

edges, shifts = st.sampled_from(EDGES), st.sampled_from(SHIFTS)
starts = st.sampled_from(STARTS)
lanes = st.permutations(STARTS).map(lambda each: tuple(each[:LANES]))
values = st.sampled_from(
    [
        Value(),
        Value(of_x=2.0, of_index=0.5),
        Value(of_start=1.0),
        Value(of_x=0.0, of_start=1.0, of_index=1.0),
        Value(of_x=0.0, of_index=1.0, plus=0.25),
        Value(of_x=0.0, plus=3.0),
    ]
)
indices = st.sampled_from([Index(), Index(7)])
# A key has a step always or never: s an integer, t a float; n is an integer itself.
logs_plain = st.one_of(
    st.builds(lambda v: Log((("a", v),)), values),
    st.builds(lambda v, w: Log((("a", v), ("b", w))), values, values),
    st.builds(lambda i: Log((("n", i),)), indices),
    st.builds(lambda v, i: Log((("s", v),), i), values, indices),
    st.builds(lambda v, w: Log((("t", v),), w), values, values),
)
logs_reduced = st.builds(
    lambda mode, v: LogReduced(f"r_{mode}", v, mode),
    st.sampled_from(["mean", "sum", "last", "first", "max", "std"]),
    values,
)
logs_of_cotangents = st.one_of(
    st.just(LogCotangent("g")), st.builds(lambda i: LogCotangent("h", i), indices)
)
assignments = st.builds(Assign, st.sampled_from(sorted(oracle_language.FUNCTIONS)), shifts)


@st.composite
def programs(
    draw: Callable[[Any], Any],
    *,
    loops: bool = True,
    derivatives: bool = True,
    reduced: bool = False,
    cotangents: bool = False,
) -> Program:
    """A program of depth four at most; `loops`: with while loops, which have no reverse mode."""
    left = 6
    logging = [logs_plain, logs_plain]
    logging += [logs_reduced] if reduced else []
    logging += [logs_of_cotangents] if cotangents else []
    leaves = st.one_of(*logging, assignments)
    kinds = ["scan", "scan", "cond", "switch", "jit", "remat"]
    kinds += ["while", "while"] if loops else []

    def statement(depth: int, inside: frozenset[str]) -> Program:
        nonlocal left
        if not depth or left <= 0 or draw(st.integers(0, 2)) == 0:
            return draw(leaves)
        left -= 1
        allowed = [kind for kind in kinds if not (kind == "while" and "grad" in inside)]
        allowed += ["grad", "jvp"] if derivatives else []
        kind = draw(st.sampled_from(allowed))

        def body() -> Program:
            return block(depth - 1, inside | {kind})

        match kind:
            case "scan":
                length = draw(st.sampled_from([2, 3, 1, 0]))
                return Scan(length, body(), draw(st.booleans()))
            case "while":
                most, below = draw(st.integers(0, 4)), draw(edges)
                return While(most, below, body(), draw(st.none() | logs_plain))
            case "cond":
                return Cond(draw(edges), body(), body())
            case "switch":
                return Switch((EDGES[0], EDGES[1]), (body(), body(), body()))
        return {"jit": Jit, "remat": Remat, "grad": Grad, "jvp": Jvp}[kind](body())

    def block(depth: int, inside: frozenset[str]) -> Program:
        return Seq(tuple(statement(depth, inside) for _ in range(draw(st.integers(1, 3)))))

    program = block(4, frozenset())
    assume(oracle_language.has(program, Log, LogReduced, LogCotangent))
    return program


def run(program: Program, x: float) -> Run:
    """The oracle's answer; not for programs that could go one way or the other by rounding."""
    found = interpret(program, x)
    assume(found.margin > 1e-3)
    return found


def close(found: Any, expected: Any, what: str) -> None:
    found, expected = np.asarray(found), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"{what}: {found} instead of {expected}"
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5, err_msg=what)


def same_entries(values: Any, steps: Any, entries: Sequence[Entry], what: str) -> None:
    """Values and steps are those of the entries, in order."""
    close(values, [entry.value for entry in entries], what)
    timed = [entry.step for entry in entries if entry.step is not None]
    if timed:
        close(steps, timed, f"{what}, steps")
    elif entries:
        assert steps is None, f"{what}: there are steps"


def same_logs(logs: Any, expected: Sequence[Entry]) -> None:
    """A concrete logdict holds exactly these entries."""
    entries = by_key(expected)
    assert gaps(logs) == set()
    assert {key for key in logs if np.size(logs[key])} == set(entries)
    for key, found in logs.items():
        steps = logs.steps.get("step", {}).get(key)
        flat = None if steps is None else np.asarray(steps).reshape(-1)
        same_entries(np.asarray(found).reshape(-1), flat, entries.get(key, []), repr(key))


def same_reduced(logs: Any, expected: Mapping[str, Entry]) -> None:
    """A concrete logdict holds exactly these reduced values, without an entry axis."""
    assert gaps(logs) == set()
    assert set(logs) == set(expected)
    for key, entry in expected.items():
        close(logs[key], entry.value, repr(key))
        if entry.step is not None:
            close(logs.step[key], entry.step, f"steps of {key!r}")


def same_lanes(logs: Any, runs: Sequence[Sequence[Entry]], *, lanes_first: bool) -> None:
    """Every lane of a logdict holds the entries of its own run, under the mask."""
    expected = [by_key(entries) for entries in runs]
    logged = set().union(*expected)
    assert logged <= set(logs)
    if not lanes_first:
        assert {key for key in logs if np.size(logs[key])} == logged

    def grid(array: Any) -> np.ndarray:
        """[entries, lanes]."""
        array = np.asarray(array)
        return array.reshape(LANES, -1).T if lanes_first else array.reshape(-1, LANES)

    for key in logs:
        found = grid(logs[key])
        steps = logs.steps.get("step", {}).get(key)
        mask = grid(logs.mask[key]) if key in logs.mask else np.ones(found.shape, bool)
        assert mask.shape == found.shape
        for lane, entries in enumerate(expected):
            here = mask[:, lane]
            timed = None if steps is None else grid(steps)[here, lane]
            what = f"{key!r} in lane {lane}"
            same_entries(found[here, lane], timed, entries.get(key, []), what)


def same_calls(calls: Sequence[Any], expected: Sequence[Sequence[Entry]]) -> None:
    """The callbacks of a tap are these calls of log, in this order."""
    assert [list(logs) for logs in calls] == [[entry.key for entry in call] for call in expected]
    for logs, call in zip(calls, expected, strict=True):
        for entry in call:
            close(logs[entry.key], entry.value, repr(entry))
            if entry.step is not None:
                close(logs.step[entry.key], entry.step, f"step of {entry}")


def reduced(entries: Sequence[Entry], mode: str) -> dict[str, Entry]:
    """What numpy makes of the entries of each name."""
    return {key: reduce_one(each, mode) for key, each in by_key(entries).items()}


def reduce_one(entries: Sequence[Entry], mode: str) -> Entry:
    found = np.array([entry.value for entry in entries], np.float64)
    folds: dict[str, Callable[[np.ndarray], Any]] = {
        "first": lambda x: x[0],
        "last": lambda x: x[-1],
        "replace": lambda x: x[-1],
        "count": len,
        **{name: getattr(np, name) for name in ("mean", "sum", "min", "max", "std", "var")},
    }
    step = None
    if entries[0].step is not None:
        steps = np.array([entry.step for entry in entries], np.float64)
        step = folds[mode if mode in ORDERLY else "last"](steps)
    return Entry(entries[0].key, folds[mode](found), step)


WAYS_OF_LANES: dict[str, Callable[..., Any]] = {
    "spool(vmap(f))": lambda f, **options: sawlog.spool(jax.vmap(f), **options),
    "vmap(spool(f))": lambda f, **options: jax.vmap(sawlog.spool(f, **options)),
    "jit(vmap(spool(f)))": lambda f, **options: jax.jit(jax.vmap(sawlog.spool(f, **options))),
}


def room(program: Program) -> dict[str, Any]:
    return {"capacity": PLENTY} if oracle_language.has(program, While) else {}


def spooled(program: Program, **options: Any) -> Callable[..., Any]:
    return sawlog.spool(compile_program(program), **options)


def stacked(starts: Sequence[float]) -> Any:
    return jnp.array(starts, jnp.float32)


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Options of spool that bound its memory."""

    interval: int | None = None
    window: int | None = None
    capacity: int | None = None
    named: bool = False
    keep: str = "first"
    reduce: str | None = None

    def options(self, program: Program) -> dict[str, Any]:
        """The keyword arguments of spool."""
        chosen: dict[str, Any] = {"keep": self.keep}
        chosen |= {"interval": self.interval} if self.interval else {}
        chosen |= {"window": self.window} if self.window else {}
        chosen |= {"reduce": self.reduce} if self.reduce else {}
        if self.capacity:
            named = dict.fromkeys(sorted(oracle_language.keys_of(program)), self.capacity)
            chosen["capacity"] = named if self.named else self.capacity
        elif not self.window and not self.reduce and oracle_language.has(program, While):
            chosen["capacity"] = PLENTY
        return chosen

    def answer(self, program: Program, entries: list[Entry]) -> tuple[list[Entry], dict[str, int]]:
        """What is kept, and how many entries of each name there was no room for."""
        kept, dropped = [], {}
        for key, each in by_key(entries).items():
            each = each[:: self.interval or 1]
            here, first = self.window, False
            applies = self.named or key in oracle_language.keys_in_while(program)
            if here is None and self.reduce is None and applies:
                here, first = self.capacity, self.keep == "first"
            some = each if here is None else each[:here] if first else each[-here:]
            kept += some
            dropped[key] = len(each) - len(some)
        return kept, dropped


sizes = st.sampled_from([1, 2, 3, 5])
bounds = st.one_of(
    st.builds(Bounds, interval=sizes, reduce=st.sampled_from([None, None, "mean", "sum"])),
    st.builds(Bounds, window=sizes, reduce=st.sampled_from([None, None, "mean", "first"])),
    st.builds(Bounds, interval=sizes, window=sizes),
    st.builds(
        Bounds,
        interval=st.sampled_from([None, None, 2]),
        capacity=sizes,
        named=st.booleans(),
        keep=st.sampled_from(["first", "last"]),
    ),
)
