"""Random programs against the interpreter in `oracle.py`.

Hypothesis builds nestings of scan, while, cond, switch, jit, remat, grad and jvp, with logs inside.
Whatever the transformations return must be what the interpreter saw, entry by entry. A program
takes half a second to compile, so a run is short; `SAWLOG_THOROUGH=1` makes it longer, and
`SAWLOG_EXAMPLES=10` ten times as long, no longer of the same programs every time, and shrinks what
fails.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jax import numpy as jnp

import sawlog
from tests.jax.same import gaps
from tests.thorough import seeded_examples

from . import oracle
from .oracle import (
    Assign,
    Cond,
    Entry,
    Grad,
    Index,
    Jit,
    Jvp,
    Log,
    LogCotangent,
    LogReduced,
    Program,
    Remat,
    Run,
    Scan,
    Seq,
    Switch,
    Value,
    While,
    by_key,
    compile_program,
    interpret,
)

pytestmark = pytest.mark.long

PLENTY = 1000
"""Room for all entries of the largest program."""

LANES = 3
MODES = ("mean", "sum", "min", "max", "first", "last", "replace", "count", "std", "var")
ORDERLY = ("first", "mean")
"""The reductions that steps follow; for all others the last step counts."""


def examples(number: int) -> settings:
    return seeded_examples(number if number > 50 else max(2, number // 8), number)


# --- Random programs ---------------------------------------------------------------------------

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
assignments = st.builds(Assign, st.sampled_from(sorted(oracle.FUNCTIONS)), shifts)


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
    assume(oracle.has(program, Log, LogReduced, LogCotangent))
    return program


def run(program: Program, x: float) -> Run:
    """The oracle's answer; not for programs that could go one way or the other by rounding."""
    found = interpret(program, x)
    assume(found.margin > 1e-3)
    return found


# --- Comparing ---------------------------------------------------------------------------------


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


def same_reduced_lanes(logs: Any, runs: Sequence[Mapping[str, Entry]]) -> None:
    """Every lane of a logdict has its own reduced value, if it logged."""
    assert set().union(*runs) <= set(logs)
    for key in logs:
        assert np.shape(logs[key]) == (LANES,)
        mask = np.asarray(logs.mask.get(key, np.ones(LANES, bool)))
        assert mask.tolist() == [key in each for each in runs]
        for lane, each in enumerate(runs):
            if key in each:
                close(logs[key][lane], each[key].value, f"{key!r} in lane {lane}")
                if each[key].step is not None:
                    close(logs.step[key][lane], each[key].step, f"steps of {key!r}, lane {lane}")


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
ways_of_lanes = st.sampled_from(sorted(WAYS_OF_LANES))


def room(program: Program) -> dict[str, Any]:
    return {"capacity": PLENTY} if oracle.has(program, While) else {}


def spooled(program: Program, **options: Any) -> Callable[..., Any]:
    return sawlog.spool(compile_program(program), **options)


def stacked(starts: Sequence[float]) -> Any:
    return jnp.array(starts, jnp.float32)


# --- The comparison can fail -------------------------------------------------------------------

SAMPLE = Seq(
    (
        Scan(
            3,
            Seq(
                (
                    Log((("a", Value(of_index=1.0)),)),
                    Cond(0.1, Log((("b", Value()),)), Log((("b", Value(plus=1.0)),))),
                    Log((("s", Value()),), Index()),
                    Assign("sin", 0.219),
                )
            ),
        ),
        While(4, 0.9, Seq((Assign("half", 0.5), Log((("a", Value()),))))),
    )
)
FIRST: Any = SAMPLE.parts[0]
LOOP: Any = SAMPLE.parts[1]
MUTANTS = {
    "a log less": Seq((dataclasses.replace(FIRST, body=Seq(FIRST.body.parts[1:])), LOOP)),
    "a log more": Seq((*SAMPLE.parts, FIRST.body.parts[0])),
    "another order": Seq((dataclasses.replace(FIRST, reverse=True), LOOP)),
    "a turn more": Seq((dataclasses.replace(FIRST, length=4), LOOP)),
    "a turn less": Seq((FIRST, dataclasses.replace(LOOP, most=1))),
    "the other branch": Seq(
        (
            dataclasses.replace(
                FIRST,
                body=Seq(
                    (
                        FIRST.body.parts[0],
                        Cond(0.1, FIRST.body.parts[1].no, FIRST.body.parts[1].yes),
                        *FIRST.body.parts[2:],
                    )
                ),
            ),
            LOOP,
        )
    ),
    "other steps": Seq(
        (
            dataclasses.replace(
                FIRST,
                body=Seq(
                    (*FIRST.body.parts[:2], Log((("s", Value()),), Index(1)), FIRST.body.parts[3])
                ),
            ),
            LOOP,
        )
    ),
    "another value": Seq((Assign("half", 0.219), *SAMPLE.parts)),
}


@functools.cache
def found_in_sample() -> dict[str, Any]:
    """What each transformation finds in the sample."""
    f, xs = compile_program(SAMPLE), stacked(STARTS[:LANES])
    calls: list[Any] = []
    sawlog.tap(f, calls.append)(STARTS[0])
    return {
        "tap": calls,
        "spool": sawlog.spool(f, capacity=PLENTY)(STARTS[0])[1],
        "spool(vmap)": sawlog.spool(jax.vmap(f), capacity=PLENTY)(xs)[1],
        "vmap(spool)": jax.vmap(sawlog.spool(f, capacity=PLENTY))(xs)[1],
    }


def check_sample(way: str, expected: Program) -> None:
    """One of the comparisons of this file, with the answer to another program."""
    runs = [interpret(expected, x) for x in STARTS[:LANES]]
    found = found_in_sample()[way]
    match way:
        case "tap":
            same_calls(found, runs[0].calls)
        case "spool":
            same_logs(found, runs[0].entries)
        case _:
            lists = [each.entries for each in runs]
            same_lanes(found, lists, lanes_first=way == "vmap(spool)")


@pytest.mark.parametrize("way", ["tap", "spool", "spool(vmap)", "vmap(spool)"])
def test_the_comparisons_can_fail(way: str) -> None:
    """They agree with the program that ran and with no other."""
    check_sample(way, SAMPLE)
    for mutant in MUTANTS.values():
        with pytest.raises(AssertionError):
            check_sample(way, mutant)


def test_the_language_is_used() -> None:
    """The generator makes everything there is, and its programs log."""
    kinds: dict[type, int] = {}
    total = 0

    @examples(200)
    @given(programs(reduced=True, cotangents=True), starts)
    def collect(program: Program, x: float) -> None:
        nonlocal total
        total += len(interpret(program, x).entries)
        for part in oracle.walk(program):
            kinds[type(part)] = kinds.get(type(part), 0) + 1

    collect()
    assert set(kinds) == set(Program.__args__)
    assert min(kinds.values()) >= 20
    assert total > 1000


# --- Everything that was logged ----------------------------------------------------------------


WAYS: dict[str, Callable[..., Any]] = {
    "spool(f)": sawlog.spool,
    "jit(spool(f))": lambda f, **options: jax.jit(sawlog.spool(f, **options)),
    "spool(jit(f))": lambda f, **options: sawlog.spool(jax.jit(f), **options),
}


@examples(24)
@given(programs(), starts, st.sampled_from(sorted(WAYS)))
@example(SAMPLE, STARTS[0], "spool(f)")
def test_spool(program: Program, x: float, way: str) -> None:
    expected = run(program, x)
    out, logs = WAYS[way](compile_program(program), **room(program))(x)
    close(out, expected.out, "output")
    same_logs(logs, expected.entries)
    assert not any(np.any(number) for number in logs.dropped.values())


@examples(24)
@given(programs(reduced=True), starts)
def test_tap(program: Program, x: float) -> None:
    expected = run(program, x)
    calls: list[Any] = []
    close(sawlog.tap(compile_program(program), calls.append)(x), expected.out, "output")
    same_calls(calls, expected.calls)


@examples(14)
@given(programs(), lanes)
def test_lanes(program: Program, xs: tuple[float, ...]) -> None:
    """spool(vmap(f)) and vmap(spool(f)) agree with each lane on its own."""
    runs = [run(program, x) for x in xs]
    f, options = compile_program(program), room(program)
    for lanes_first, fun in (
        (False, sawlog.spool(jax.vmap(f), **options)),
        (True, jax.vmap(sawlog.spool(f, **options))),
    ):
        out, logs = fun(stacked(xs))
        close(out, [each.out for each in runs], "output")
        same_lanes(logs, [each.entries for each in runs], lanes_first=lanes_first)


@examples(14)
@given(programs(), lanes)
def test_tap_of_lanes(program: Program, xs: tuple[float, ...]) -> None:
    """tap(vmap(f)) calls back with all lanes; its mask says which of them logged."""
    runs = [run(program, x) for x in xs]
    calls: list[Any] = []
    out = sawlog.tap(jax.vmap(compile_program(program)), calls.append)(stacked(xs))
    close(out, [each.out for each in runs], "output")
    for lane, each in enumerate(runs):
        found = []
        for logs in calls:
            for key in logs:
                if np.all(logs.mask[key][lane] if key in logs.mask else True):
                    step = logs.step[key][lane] if key in logs.steps.get("step", {}) else None
                    found.append(Entry(key, logs[key][lane], step))
        assert [entry.key for entry in found] == [entry.key for entry in each.entries]
        close([e.value for e in found], [e.value for e in each.entries], f"lane {lane}")
        close(
            [e.step for e in found if e.step is not None],
            [e.step for e in each.entries if e.step is not None],
            f"steps in lane {lane}",
        )


# --- Reductions --------------------------------------------------------------------------------


@pytest.mark.turns(6)
@pytest.mark.parametrize("mode", MODES)
@examples(4)
@given(program=programs(reduced=True), xs=lanes, way=ways_of_lanes)
def test_reduce(mode: str, program: Program, xs: tuple[float, ...], way: str) -> None:
    runs = [run(program, x) for x in xs]
    f = compile_program(program)
    answers = [reduced(each.entries, mode) for each in runs]
    out, logs = sawlog.spool(f, reduce=mode)(xs[0])
    close(out, runs[0].out, "output")
    same_reduced(logs, answers[0])
    assert all(list(by) == [mode] for by in logs.asdict().values())
    same_reduced_lanes(WAYS_OF_LANES[way](f, reduce=mode)(stacked(xs))[1], answers)


@examples(14)
@given(programs(reduced=True), lanes)
def test_logify(program: Program, xs: tuple[float, ...]) -> None:
    modes = oracle.reductions_of(program)
    runs = [run(program, x) for x in xs]
    answers = [
        {key: reduce_one(each.of(key), modes.get(key, "replace")) for key in by_key(each.entries)}
        for each in runs
    ]
    f = compile_program(program)
    out, logs = sawlog.logify(f)(xs[0])
    close(out, runs[0].out, "output")
    same_reduced(logs, answers[0])
    assert {key: list(by) for key, by in logs.asdict().items()} == {
        key: [modes.get(key, "replace")] for key in answers[0]
    }
    same_reduced_lanes(sawlog.logify(jax.vmap(f))(stacked(xs))[1], answers)


# --- Some of what was logged -------------------------------------------------------------------


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
            named = dict.fromkeys(sorted(oracle.keys_of(program)), self.capacity)
            chosen["capacity"] = named if self.named else self.capacity
        elif not self.window and not self.reduce and oracle.has(program, While):
            chosen["capacity"] = PLENTY
        return chosen

    def answer(self, program: Program, entries: list[Entry]) -> tuple[list[Entry], dict[str, int]]:
        """What is kept, and how many entries of each name there was no room for."""
        kept, dropped = [], {}
        for key, each in by_key(entries).items():
            each = each[:: self.interval or 1]
            here, first = self.window, False
            applies = self.named or key in oracle.keys_in_while(program)
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


@examples(24)
@given(programs(), bounds, starts)
def test_bounds(program: Program, bounds: Bounds, x: float) -> None:
    expected = run(program, x)
    kept, dropped = bounds.answer(program, expected.entries)
    out, logs = spooled(program, **bounds.options(program))(x)
    close(out, expected.out, "output")
    if bounds.reduce:
        same_reduced(logs, reduced(kept, bounds.reduce))
        return
    same_logs(logs, kept)
    found = {key: int(number) for key, number in logs.dropped.items()}
    assert {key: dropped.get(key, 0) for key in found} == found
    if not bounds.window:
        assert {key for key, number in dropped.items() if number} <= set(found)


@examples(24)
@given(programs(), bounds, lanes, ways_of_lanes)
def test_bounds_of_lanes(program: Program, bounds: Bounds, xs: tuple, way: str) -> None:
    """Each lane counts its own entries."""
    answers = [bounds.answer(program, run(program, x).entries) for x in xs]
    fun = WAYS_OF_LANES[way](compile_program(program), **bounds.options(program))
    _, logs = fun(stacked(xs))
    if bounds.reduce:
        same_reduced_lanes(logs, [reduced(kept, bounds.reduce) for kept, _ in answers])
        return
    same_lanes(logs, [kept for kept, _ in answers], lanes_first=way != "spool(vmap(f))")
    for key, number in logs.dropped.items():
        expected = [dropped.get(key, 0) for _, dropped in answers]
        assert np.broadcast_to(number, (LANES,)).tolist() == expected, key


# --- Derivatives -------------------------------------------------------------------------------


def hessian_vector(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.jvp(jax.grad(f), (x,), (jnp.ones_like(x),))[0]


FORWARD = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1],
    "jacfwd": jax.jacfwd,
}
REVERSE = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(f)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.ones_like(x))[0],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](jnp.ones_like(x)),
    "remat": lambda f: jax.grad(jax.checkpoint(f)),
    "remat of jit": lambda f: jax.grad(jax.checkpoint(jax.jit(f))),
    "hessian-vector product": hessian_vector,
    "forward over reverse": lambda f: (
        lambda x: jax.jvp(jax.jit(jax.grad(f)), (x,), (jnp.ones_like(x),))[0]
    ),
}


WAYS_OF_GRAD: dict[str, Callable[..., Any]] = {
    "spool(grad(f))": lambda f, **options: sawlog.spool(jax.grad(f), **options),
    "grad(spool(f))": lambda f, **options: jax.grad(sawlog.spool(f, **options), has_aux=True),
    "spool(hvp(f))": lambda f, **options: sawlog.spool(hessian_vector(f), **options),
}
ways_of_grad = st.sampled_from(sorted(WAYS_OF_GRAD))


@pytest.mark.parametrize("way", FORWARD)
@examples(5)
@given(program=programs(), x=starts)
def test_forward_mode(way: str, program: Program, x: float) -> None:
    expected = run(program, x)
    found, logs = sawlog.spool(FORWARD[way](compile_program(program)), **room(program))(x)
    close(found, expected.slope, "slope")
    same_logs(logs, expected.entries)


@pytest.mark.turns(4)
@pytest.mark.parametrize("way", REVERSE)
@examples(5)
@given(program=programs(loops=False), x=starts)
def test_reverse_mode(way: str, program: Program, x: float) -> None:
    """Each forward log exactly once."""
    expected = run(program, x)
    found, logs = sawlog.spool(REVERSE[way](compile_program(program)))(x)
    close(found, expected.slope, "slope")
    same_logs(logs, expected.entries)


@examples(12)
@given(programs(loops=False), lanes)
def test_grad_of_spool(program: Program, xs: tuple[float, ...]) -> None:
    runs = [run(program, x) for x in xs]
    f = spooled(program)
    slope, logs = jax.grad(f, has_aux=True)(xs[0])
    close(slope, runs[0].slope, "slope")
    same_logs(logs, runs[0].entries)
    slopes, logs = sawlog.spool(jax.vmap(jax.grad(compile_program(program))))(stacked(xs))
    close(slopes, [each.slope for each in runs], "slopes")
    same_lanes(logs, [each.entries for each in runs], lanes_first=False)


@examples(10)
@given(programs(loops=False, reduced=True), st.sampled_from(MODES), starts, ways_of_grad)
def test_reduce_of_grad(program: Program, mode: str, x: float, way: str) -> None:
    expected = run(program, x)
    answer = reduced(expected.entries, mode)
    found, logs = WAYS_OF_GRAD[way](compile_program(program), reduce=mode)(x)
    close(found, expected.slope, "slope")
    same_reduced(logs, answer)


@examples(10)
@given(programs(loops=False), bounds, starts, ways_of_grad)
def test_bounds_of_grad(program: Program, bounds: Bounds, x: float, way: str) -> None:
    bounds = dataclasses.replace(bounds, reduce=None)
    expected = run(program, x)
    kept, _ = bounds.answer(program, expected.entries)
    found, logs = WAYS_OF_GRAD[way](compile_program(program), **bounds.options(program))(x)
    close(found, expected.slope, "slope")
    same_logs(logs, kept)


@examples(12)
@given(programs(loops=False), starts)
def test_tap_of_grad(program: Program, x: float) -> None:
    expected = run(program, x)
    calls: list[Any] = []
    found = sawlog.tap(jax.grad(compile_program(program)), calls.append)(x)
    close(found, expected.slope, "slope")
    same_calls(calls, expected.calls)


# --- Cotangents --------------------------------------------------------------------------------

COTANGENTS = {
    "grad": jax.grad,
    "jit of grad": lambda f: jax.jit(jax.grad(jax.jit(f))),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](jnp.ones_like(x))[0],
    "remat": lambda f: jax.grad(jax.checkpoint(f)),
    "hessian-vector product": hessian_vector,
}
with_cotangents = programs(loops=False, derivatives=False, cotangents=True)


@pytest.mark.turns(3)
@pytest.mark.parametrize("way", COTANGENTS)
@examples(6)
@given(program=with_cotangents, x=starts)
def test_cotangents(way: str, program: Program, x: float) -> None:
    """The gradient at every place, in the order in which the backward pass comes there."""
    expected = run(program, x)
    found, logs = sawlog.spool(COTANGENTS[way](compile_program(program)))(x)
    close(found, expected.slope, "slope")
    same_logs(logs, [*expected.entries, *expected.cotangents()])


@examples(12)
@given(with_cotangents, lanes)
def test_cotangents_of_lanes(program: Program, xs: tuple[float, ...]) -> None:
    runs = [run(program, x) for x in xs]
    f = jax.grad(compile_program(program))
    answers = [[*each.entries, *each.cotangents()] for each in runs]
    for lanes_first, fun in ((False, sawlog.spool(jax.vmap(f))), (True, jax.vmap(sawlog.spool(f)))):
        slopes, logs = fun(stacked(xs))
        close(slopes, [each.slope for each in runs], "slopes")
        same_lanes(logs, answers, lanes_first=lanes_first)


@examples(12)
@given(with_cotangents, st.sampled_from(MODES), starts)
def test_reduced_cotangents(program: Program, mode: str, x: float) -> None:
    expected = run(program, x)
    found, logs = sawlog.spool(jax.grad(compile_program(program)), reduce=mode)(x)
    close(found, expected.slope, "slope")
    same_reduced(logs, reduced([*expected.entries, *expected.cotangents()], mode))


@examples(10)
@given(with_cotangents, starts)
def test_no_cotangents_without_a_gradient(program: Program, x: float) -> None:
    expected = run(program, x)
    f = compile_program(program)
    for fun in (f, lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[0]):
        out, logs = sawlog.spool(fun)(x)
        close(out, expected.out, "output")
        same_logs(logs, expected.entries)


# --- tap in batches ----------------------------------------------------------------------------


def unbatched(calls: Sequence[Any]) -> dict[str, list[Entry]]:
    """The entries of each name, from callbacks with several entries each."""
    found: dict[str, list[Entry]] = {}
    for logs in calls:
        for key, each in logs.entries().items():
            steps = logs.steps.get("step", {}).get(key)
            for place, value in enumerate(np.asarray(each)):
                step = None if steps is None else np.asarray(steps).reshape(-1)[place]
                found.setdefault(key, []).append(Entry(key, value, step))
    return found


@examples(24)
@given(programs(reduced=True), st.sampled_from([1, 2, 3, 7, PLENTY]), starts)
def test_tap_with_a_buffer(program: Program, buffer: int, x: float) -> None:
    """Nothing is lost, and the order of each name is kept."""
    expected = run(program, x)
    calls: list[Any] = []
    out = sawlog.tap(compile_program(program), calls.append, buffer=buffer)(x)
    close(out, expected.out, "output")
    found, entries = unbatched(calls), by_key(expected.entries)
    assert set(found) == set(entries)
    for key, each in entries.items():
        steps = [entry.step for entry in found[key] if entry.step is not None]
        same_entries([e.value for e in found[key]], steps or None, each, repr(key))
    assert len(calls) <= max(len(expected.entries), 1)


@examples(12)
@given(programs(loops=False), st.sampled_from([2, 5]), starts)
def test_tap_of_grad_with_a_buffer(program: Program, buffer: int, x: float) -> None:
    expected = run(program, x)
    calls: list[Any] = []
    f = jax.grad(compile_program(program))
    close(sawlog.tap(f, calls.append, buffer=buffer)(x), expected.slope, "slope")
    found, entries = unbatched(calls), by_key(expected.entries)
    assert set(found) == set(entries)
    for key, each in entries.items():
        steps = [entry.step for entry in found[key] if entry.step is not None]
        same_entries([e.value for e in found[key]], steps or None, each, repr(key))
