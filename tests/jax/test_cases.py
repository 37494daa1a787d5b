"""Every row of the table, run in every way that a user might.

By default ways that are much alike take turns, row by row; `SAWLOG_THOROUGH=1` runs every row in
every way.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from jax import numpy as jnp

import sawlog
import sawlog.errors
from tests.thorough import THOROUGH, one_of

from .case_ways import (
    again,
    call,
    check_output,
    check_refusal,
    check_spool,
    expect,
    halved,
    spooled,
    tapped,
)
from .cases import CASES, Case
from .cases.base import PyTree, stack
from .cases.compare import same_calls, same_logs, same_tree, stack_logs

Way = Callable[[Case], None]
WAYS: dict[str, Way] = {}
MEANINGFUL: dict[str, Callable[[Case], bool]] = {}


def way(meaningful: Callable[[Case], bool] = lambda case: True) -> Callable[[Way], Way]:
    """Enter a check that every row goes through for which it is meaningful."""

    def enter(check: Way) -> Way:
        WAYS[check.__name__] = check
        MEANINGFUL[check.__name__] = meaningful
        return check

    return enter


def jitted(case: Case, fun: Callable[..., Any]) -> Callable[..., Any]:
    """jit, with the case's static arguments."""
    return jax.jit(fun, static_argnums=case.static_argnums or None)


def check_tap(case: Case, fun: Callable[..., Any], calls: list, where: str) -> None:
    """A tapped function gives the output and the callbacks, or the error of the case."""
    if case.tap_error:
        check_refusal(case, fun, case.tap_error)
        return
    out = call(fun, case)
    jax.effects_barrier()
    check_output(case, out, where)
    if case.order is not None:
        assert tuple(key for seen in calls for key in seen) == case.order
    _, logs = expect(case)
    ordered, ndim = case.tap_ordered, case.mesh_ndim
    same_calls(calls, logs, mesh_ndim=ndim, ordered=ordered, rtol=case.rtol)


# --- The ways ---------------------------------------------------------------------------------


@way()
def plain(case: Case) -> None:
    """Without a transformation nothing is bound: the jaxpr is that of the program without logs."""
    if calls_plainly(case):
        check_output(case, call(case.fun, case), "the plain call")
    if can_be_traced(case):
        assert jaxpr_of(case, case.build()[0]) == jaxpr_without_logs(case)


def can_be_traced(case: Case) -> bool:
    """Whether all arguments can be those of `jax.make_jaxpr`."""
    return case.jit and not case.static_argnums


def calls_plainly(case: Case) -> bool:
    """Whether to call the plain function; else its jaxpr is looked at, which compiles nothing."""
    return again(case) or not can_be_traced(case)


def jaxpr_of(case: Case, fun: Callable[..., Any]) -> str:
    """The text of the jaxpr of a program, without addresses."""
    text = str(jax.make_jaxpr(fun)(*case.args, **case.kwargs))
    return re.sub(r"0x[0-9a-f]+", "0x", text)


def jaxpr_without_logs(case: Case) -> str:
    """The jaxpr of a freshly built program in which `log` does nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sawlog, "log", lambda *args, **kwargs: None)
        return jaxpr_of(case, case.build()[0])


@way(lambda case: case.jit)
def jit_spool(case: Case) -> None:
    """jit(spool(f))."""
    check_spool(case, jitted(case, spooled(case)), "jit(spool(f))")


@way(lambda case: case.jit)
def spool_jit(case: Case) -> None:
    """spool(jit(f))."""
    check_spool(case, spooled(case, jitted(case, case.fun)), "spool(jit(f))")


@way()
def spool(case: Case) -> None:
    """spool(f): one wrapper called twice, then a new one."""
    wrapped = spooled(case)
    check_spool(case, wrapped, "spool(f), first call")
    check_spool(case, wrapped, "spool(f), second call")
    if again(case):
        check_spool(case, spooled(case), "a second spool(f)")


@way(lambda case: case.jit and case.tap)
def jit_tap(case: Case) -> None:
    """jit(tap(f))."""
    calls: list = []
    check_tap(case, jitted(case, tapped(case, calls)), calls, "jit(tap(f))")


@way(lambda case: case.tap)
def tap(case: Case) -> None:
    """tap(f): one wrapper called twice, then a new one."""
    calls: list = []
    wrapped = tapped(case, calls)
    check_tap(case, wrapped, calls, "tap(f), first call")
    calls.clear()
    check_tap(case, wrapped, calls, "tap(f), second call")
    if again(case):
        other: list = []
        check_tap(case, tapped(case, other), other, "a second tap(f)")


@way(lambda case: case.spool_error is None)
def spool_spool(case: Case) -> None:
    """The inner spool consumes the logs."""
    (out, inner), outer = call(sawlog.spool(spooled(case)), case)
    check_output(case, out, "spool(spool(f))")
    same_logs(inner, expect(case)[1], case.rtol)
    assert len(outer) == 0


@way()
def strip(case: Case) -> None:
    """strip(f) logs nothing, to nobody."""
    stripped = sawlog.strip(case.fun)
    check_output(case, call(stripped, case), "strip(f)")
    arrays = lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x
    given = dataclasses.replace(case, make_args=lambda: jax.tree.map(arrays, case.args))
    _, logs = jax.eval_shape(lambda: call(sawlog.spool(stripped), given))
    assert len(logs) == 0


@way(lambda case: case.vmap and case.spool_error is None)
def vmap(case: Case) -> None:
    """vmap(spool(f)) over two lanes gives the logs of each."""
    lanes = [(case.args, dict(case.kwargs)), halved(case.args, dict(case.kwargs))]
    answers = [case.answer(*args, **kwargs) for args, kwargs in lanes]
    args, kwargs = stack(lanes)
    out, logs = jax.vmap(spooled(case))(*args, **kwargs)
    same_tree(out, stack([out for out, _ in answers]), "output of vmap(spool(f))", case.rtol)
    expected = stack_logs([logs for _, logs in answers])
    assert set(logs) == set(expected)
    for key, (value, steps) in expected.items():
        same_tree(logs[key], value, f"vmap(spool(f)), logs[{key!r}]", case.rtol)
        for name, step in steps.items():
            same_tree(getattr(logs, name)[key], step, f"vmap(spool(f)), logs.{name}[{key!r}]")


@way(lambda case: case.grad and case.spool_error is None and bool(float_arguments(case)))
def grad(case: Case) -> None:
    """grad through spool(f): the gradient of the plain function, and the same logs."""
    argnums = float_arguments(case)

    def plain_loss(*args: Any, **kwargs: Any) -> Any:
        return sum_of_floats(case.fun(*args, **kwargs))

    def logged_loss(*args: Any, **kwargs: Any) -> Any:
        out, logs = spooled(case)(*args, **kwargs)
        return sum_of_floats(out), logs

    expected = call(jitted(case, jax.grad(plain_loss, argnums)), case)
    found, logs = call(jitted(case, jax.grad(logged_loss, argnums, has_aux=True)), case)
    same_tree(found, expected, "gradient through spool(f)", case.rtol)
    same_logs(logs, expect(case)[1], case.rtol)


def float_arguments(case: Case) -> tuple[int, ...]:
    """The positions of the arguments that have float leaves only."""
    return tuple(i for i, arg in enumerate(case.args) if _is_float_tree(arg))


def _is_float_tree(arg: PyTree) -> bool:
    leaves = jax.tree.leaves(arg)
    return bool(leaves) and all(
        hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves
    )


def sum_of_floats(tree: PyTree) -> Any:
    """A scalar to differentiate."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    return sum((jnp.sum(leaf) for leaf in floats), jnp.float32(0))


@way(lambda case: case.spool_error is None)
def round_trip(case: Case) -> None:
    """The logs survive jax.tree, and jax.eval_shape tells their shapes beforehand."""
    wrapped = spooled(case)
    _, logs = call(wrapped, case)
    leaves, structure = jax.tree.flatten(logs)
    same_logs(jax.tree.unflatten(structure, leaves), expect(case)[1], case.rtol)
    same_logs(logs.copy(), expect(case)[1], case.rtol)
    if case.static_argnums or not case.jit:
        return
    _, shapes = jax.eval_shape(wrapped, *case.args, **case.kwargs)
    for key, logged in expect(case)[1].items():
        if not shapes._layout.by_key[key].masked and logged.present:
            same_shapes(shapes[key], logs[key])


def same_shapes(found: PyTree, expected: PyTree) -> None:
    """Equal structure, shapes and dtypes."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    assert all(left.shape == right.shape and left.dtype == right.dtype for left, right in pairs)


TURNS = (
    ("spool", "jit_spool", "spool", "spool_jit", "spool_spool", "spool", "strip", "round_trip"),
    ("tap", "jit_tap", "", "", ""),
    ("vmap", "grad", "", "", ""),
)
"""Ways that share most of what they do: by default a row goes through one of each.

One that is named several times has its turn as often; an empty name means none of them.
"""


def ways_of(case: Case, *, thorough: bool = THOROUGH) -> list[str]:
    """The ways in which a row is run, in order."""
    names = [name for name in WAYS if MEANINGFUL[name](case)]
    if case.ways is not None:
        names = [name for name in names if name in case.ways]
        return names if thorough or len(names) < 3 else [names[0], one_of(names[1:], case.name)]
    for alike in () if thorough else TURNS:
        some = [name for name in alike if name in names or not name]
        names = [n for n in names if n not in some or n == one_of(some, case.name)]
    return names


#: Rows that take seconds to compile; others have the same loops inside.
SLOW = frozenset(
    {
        "blackjax_nuts",
        "diffrax_backsolve_grad",
        "diffrax_checkpointed_lanes_grad",
        "diffrax_direct_lanes_grad",
        "numpyro_nuts",
    }
)


@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param(case, name, id=f"{row}-{name}", marks=[pytest.mark.thorough][: row in SLOW])
        for row, case in CASES.items()
        for name in ways_of(case)
    ],
)
def test_case(case: Case, name: str) -> None:
    """One row in one way; after the last of them the plain function is what it was."""
    WAYS[name](case)
    if case.ways is not None and "plain" not in case.ways:
        return
    if THOROUGH or name == ways_of(case)[-1]:
        if calls_plainly(case):
            check_output(case, call(case.fun, case), f"a plain call after {ways_of(case)}")
        else:
            assert jaxpr_of(case, case.fun) == jaxpr_without_logs(case)


def test_slow_rows_exist() -> None:
    assert set(CASES) >= SLOW


def test_every_way_gets_its_turn() -> None:
    """With many rows, and every row with the ways that nothing else stands for."""
    rows = {row: case for row, case in CASES.items() if case.ways is None}
    some = {row: ways_of(case, thorough=False) for row, case in rows.items()}
    every = {row: ways_of(case, thorough=True) for row, case in rows.items()}
    for name in WAYS:
        possible = [row for row, names in every.items() if name in names]
        chosen = [row for row, names in some.items() if name in names]
        assert len(chosen) >= min(20, len(possible)), name
    in_turn = set().union(*TURNS)
    for row, names in some.items():
        assert set(names) >= set(every[row]) - in_turn, row
        for alike in TURNS:
            taken = bool({*names} & {*alike})
            assert taken == bool({*every[row]} & {*alike}) or (not taken and "" in alike), row
