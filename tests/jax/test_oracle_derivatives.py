"""Random programs against the interpreter in `oracle.py`: derivatives, cotangents, buffers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import numpy as jnp

import sawlog

from .oracle import Entry, by_key, compile_program
from .oracle_language import Program
from .oracle_programs import (
    MODES,
    PLENTY,
    Bounds,
    bounds,
    close,
    examples,
    lanes,
    programs,
    reduced,
    room,
    run,
    same_calls,
    same_entries,
    same_lanes,
    same_logs,
    same_reduced,
    spooled,
    stacked,
    starts,
)

pytestmark = pytest.mark.long


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


@pytest.mark.turns(2)
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
