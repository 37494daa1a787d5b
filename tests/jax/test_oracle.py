"""Random programs against the interpreter in `oracle.py`: everything that is logged."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sawlog

from . import oracle_language
from .oracle import Entry, compile_program, interpret
from .oracle_language import Assign, Cond, Index, Log, Program, Scan, Seq, Value, While
from .oracle_programs import (
    LANES,
    PLENTY,
    STARTS,
    close,
    examples,
    lanes,
    programs,
    room,
    run,
    same_calls,
    same_lanes,
    same_logs,
    stacked,
    starts,
)

pytestmark = pytest.mark.long


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
        for part in oracle_language.walk(program):
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
