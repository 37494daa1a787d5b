"""Random programs against the interpreter in `oracle.py`: reductions, bounds and `logify`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sawlog

from . import oracle_language
from .oracle import Entry, by_key, compile_program
from .oracle_language import Program
from .oracle_programs import (
    LANES,
    MODES,
    WAYS_OF_LANES,
    Bounds,
    bounds,
    close,
    examples,
    lanes,
    programs,
    reduce_one,
    reduced,
    run,
    same_lanes,
    same_logs,
    same_reduced,
    spooled,
    stacked,
    starts,
)

pytestmark = pytest.mark.long


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


ways_of_lanes = st.sampled_from(sorted(WAYS_OF_LANES))


# --- Reductions --------------------------------------------------------------------------------


@pytest.mark.turns(3)
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
    modes = oracle_language.reductions_of(program)
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
