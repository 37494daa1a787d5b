"""Error texts: each says what, where in the user's source, and what to do next."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import errors

from .message_helpers import has, message
from .place_programs import line_of

BAD_LOGS = {
    "nothing": (lambda: sawlog.log(), "nothing"),  # nothing
    "a number": (lambda: sawlog.log(3), "int"),  # a number
    "a lone name": (lambda: sawlog.log("loss"), "str"),  # a lone name
    "three": (lambda: sawlog.log("a", 1, 2), "str, int, int"),  # three
    "a dict and more": (lambda: sawlog.log({"a": 1}, 2), "step=2"),  # a dict and more
    "an empty name": (lambda: sawlog.log("", 1), "''"),  # an empty name
    "an empty key": (lambda: sawlog.log({"": 1}), "''"),  # an empty key
    "a number as key": (lambda: sawlog.log({3: 1}), "3"),  # a number as key
    "a name of bytes": (lambda: sawlog.log(b"x", 1), "b'x'"),  # a name of bytes
    "a string": (lambda: sawlog.log({"my/key": "text"}), "my/key"),  # a string
    "an object": (lambda: sawlog.log("my/key", object()), "object"),  # an object
    "inside a tree": (lambda: sawlog.log({"k": [1, {"b": "text"}]}), "'k'"),  # inside a tree
    "a string step": (lambda: sawlog.log({"a": 1}, epoch="one"), "epoch"),  # a string step
    "reduction": (lambda: sawlog.log({"a": 1}, reduction="mean"), "reduction"),  # reduction
    "prefix": (lambda: sawlog.log({"a": 1}, prefix=3), "prefix"),  # prefix
    "tags": (lambda: sawlog.log({"a": 1}, tags=[3]), "tags"),  # tags
    "one tag": (lambda: sawlog.log({"a": 1}, tags=3), "tags"),  # one tag
    "a tag and a name": (lambda: sawlog.log("a", 1, tags=(None,)), "tags"),  # a tag and a name
    "a cotangent": (lambda: sawlog.log_cotangent("", 1.0), "''"),  # a cotangent
}
WITH_HINT = {"a string", "an object", "inside a tree", "a string step", "reduction"}


@pytest.mark.parametrize("case", BAD_LOGS)
@pytest.mark.parametrize("around", ["plain", "spool", "jit"])
def test_bad_logs(case: str, around: str) -> None:
    """Refused wherever they stand, listening or not, and the line is named."""
    call, word = BAD_LOGS[case]
    fun = {"plain": call, "spool": sawlog.spool(call), "jit": jax.jit(call)}[around]
    text = message(errors.LogValueError, fun)
    has(text, line_of(__file__, case), word)
    if case in WITH_HINT:
        assert "Hint:" in text


def test_log_value_error_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        sawlog.log()


def test_good_logs_are_not_refused() -> None:
    """Whatever JAX can hold."""
    values = [1, 1.5, True, 1j, np.float64(2), np.arange(3), jnp.ones(2, jnp.bfloat16)]
    values += [jax.random.key(0), None, {}, [1, (2, None)], {"a": {"b": 1}}]
    for value in values:
        logs = sawlog.spool(lambda value=value: sawlog.log({"v": value}, step=1))()[1]
        assert set(logs) == ({"v"} if jax.tree.leaves(value) else set())


# -- mismatches ------------------------------------------------------------------------------------


def shapes(x: Any) -> None:
    sawlog.log({"k": x})  # shapes 1
    sawlog.log({"k": jnp.ones(2)})  # shapes 2


def dtypes(x: Any) -> None:
    sawlog.log({"k": x})  # dtypes 1
    sawlog.log({"k": jnp.int32(x)})  # dtypes 2


def structures(x: Any) -> None:
    sawlog.log({"k": (x, x)})  # structures 1
    sawlog.log({"k": [x, x]})  # structures 2


def steps(x: Any) -> None:
    sawlog.log({"k": x}, step=1)  # steps 1
    sawlog.log({"k": x})  # steps 2


def step_names(x: Any) -> None:
    sawlog.log({"k": x}, step=1)  # step_names 1
    sawlog.log({"k": x}, episode=1)  # step_names 2


def step_types(x: Any) -> None:
    sawlog.log({"k": x}, step=1)  # step_types 1
    sawlog.log({"k": x}, step=x)  # step_types 2


def branches(x: Any) -> None:
    lax.cond(
        x > 0,
        lambda: sawlog.log({"k": x}),  # branches 1
        lambda: sawlog.log({"k": jnp.stack([x, x])}),  # branches 2
    )


def branch_steps(x: Any) -> None:
    lax.switch(
        jnp.int32(x),
        [
            lambda: None,
            lambda: sawlog.log({"k": x}, step=1),  # branch_steps 1
            lambda: sawlog.log({"k": x}),  # branch_steps 2
        ],
    )


def loop_and_not(x: Any) -> None:
    sawlog.log({"k": x})  # loop_and_not 1
    lax.map(lambda v: sawlog.log({"k": jnp.stack([v, v])}), jnp.stack([x, x]))  # loop_and_not 2


def two_loops(x: Any) -> None:
    xs = jnp.stack([x, x])
    lax.map(lambda v: sawlog.log({"k": v}), xs)  # two_loops 1
    lax.map(lambda v: sawlog.log({"k": jnp.bool_(v)}), xs)  # two_loops 2


def one_mapped(x: Any) -> None:
    sawlog.log({"k": x})  # one_mapped 1
    jax.vmap(lambda v: sawlog.log({"k": v}))(jnp.stack([x, x]))  # one_mapped 2


def inner_jit(x: Any) -> None:
    jax.jit(lambda x: sawlog.log({"k": x}))(x)  # inner_jit 1
    sawlog.log({"k": x}, step=3)  # inner_jit 2


MISMATCHES = {
    shapes: ("float32[]", "float32[2]"),
    dtypes: ("float32[]", "int32[]"),
    structures: ("(*, *)", "[*, *]"),
    steps: ("step", "none"),
    step_names: ("step", "episode"),
    step_types: ("int32", "float32"),
    branches: ("float32[]", "float32[2]"),
    branch_steps: ("step", "none"),
    loop_and_not: ("float32[]", "float32[2]"),
    two_loops: ("float32[]", "bool[]"),
    one_mapped: ("float32[]", "float32[2]"),
    inner_jit: ("step", "none"),
}


@pytest.mark.parametrize("program", MISMATCHES, ids=lambda program: program.__name__)
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.vmap], ids=["bare", "jit", "vmap"])
def test_mismatches_name_both_lines(program: Any, around: Any) -> None:
    """The key, what differs, and both places, however it is called."""
    x = jnp.ones(3) if around is jax.vmap else 1.0
    text = message(errors.LogMismatchError, around(sawlog.spool(program)), x)
    name = program.__name__
    has(
        text,
        "'k'",
        line_of(__file__, f"{name} 1"),
        line_of(__file__, f"{name} 2"),
        "Hint:",
        *MISMATCHES[program],
    )


@pytest.mark.parametrize("program", MISMATCHES, ids=lambda program: program.__name__)
def test_mismatches_matter_to_spool_only(program: Any) -> None:
    """tap sees one call at a time; plain calls and other names go through."""
    seen: list[Any] = []
    sawlog.tap(program, seen.append)(1.0)
    assert len(seen) >= (1 if program in (branches, branch_steps) else 2)
    program(1.0)
    sawlog.strip(program)(1.0)
    assert sawlog.spool(program, argnames="other")(1.0)[1] == {}


def test_a_mismatch_in_the_same_line_twice() -> None:
    def f(x: Any) -> None:
        for value in (x, jnp.ones(2)):
            sawlog.log({"k": value})  # same line

    assert (
        message(errors.LogMismatchError, sawlog.spool(f), 1.0).count(line_of(__file__, "same line"))
        == 2
    )


def test_mismatch_between_logdicts() -> None:
    one = sawlog.logdict({"k": jnp.zeros(3)})
    for other, words in (
        (sawlog.logdict({"k": jnp.zeros((3, 2))}), ["float32[]", "float32[2]"]),
        (sawlog.logdict({"k": jnp.zeros(3, int)}), ["float32", "int32"]),
        (sawlog.logdict({"k": [jnp.zeros(3)]}), ["[*]"]),
        (sawlog.logdict({"k": jnp.zeros(3)}, step={"k": jnp.arange(3)}), ["step"]),
    ):
        text = message(errors.LogMismatchError, one.__add__, other)
        has(text, "'k'", "Hint:", *words)


# -- loops, primitives, places ---------------------------------------------------------------------


def while_program(x: Any) -> Any:
    def body(v: Any) -> Any:
        sawlog.log({"v": v})  # while log
        return v * 2

    return lax.while_loop(lambda v: v < 10, body, x)  # while loop


def fori_program(x: Any) -> Any:
    body = lambda i, v: (sawlog.log({"v": v}), v + i)[1]  # fori log
    return lax.fori_loop(0, jnp.int32(x), body, x)  # fori loop


def in_scan(x: Any) -> Any:
    return lax.scan(lambda c, _: (while_program(c), None), x, length=2)[0]


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.vmap], ids=["bare", "jit", "vmap"])
@pytest.mark.parametrize(
    ("program", "marker"),
    [(while_program, "while"), (fori_program, "fori"), (in_scan, "while")],
    ids=["while", "fori", "in scan"],
)
def test_loops_of_unknown_length(program: Any, marker: str, around: Any) -> None:
    x = jnp.array([1.0, 2.0]) if around is jax.vmap else 1.0
    text = message(errors.UnsupportedLoopError, around(sawlog.spool(program)), x)
    has(text, line_of(__file__, f"{marker} log"), line_of(__file__, f"{marker} loop"), "Hint:")
    has(text, "capacity=", "reduce=", "sawlog.tap")
    assert sawlog.spool(program, argnames="other")(1.0)[1] == {}
    assert sawlog.strip(program)(1.0) == program(1.0)


def test_a_log_in_the_condition_of_a_loop() -> None:
    def cond(v: Any) -> Any:
        sawlog.log({"v": v})  # condition log
        return v < 10

    fun = lambda x: lax.while_loop(cond, lambda v: v * 2, x)
    has(
        message(errors.UnsupportedLoopError, sawlog.spool(fun), 1.0),
        line_of(__file__, "condition log"),
    )


def reduce_program(x: Any) -> Any:
    def add(a: Any, b: Any) -> Any:
        sawlog.log({"a": a})  # reduce log
        return a + b

    return lax.reduce(x, 0.0, add, (0,))  # reduce call


@pytest.mark.parametrize("transform", [sawlog.spool, sawlog.tap], ids=["spool", "tap"])
def test_primitives_without_a_rule(transform: Any) -> None:
    x = jnp.arange(3.0)
    text = message(errors.UnsupportedPrimitiveError, transform(reduce_program), x)
    has(
        text,
        "'reduce'",
        line_of(__file__, "reduce log"),
        line_of(__file__, "reduce call"),
        "Hint:",
        "register_rule",
    )
    assert reduce_program(x) == sawlog.strip(reduce_program)(x) == 3
    assert transform(reduce_program, argnames="other")(x) is not None


@pytest.mark.parametrize("transform", [sawlog.spool, sawlog.tap], ids=["spool", "tap"])
def test_compile_time_evaluation(transform: Any) -> None:
    def f(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            sawlog.log({"now": 1.0})  # compile time
        return x

    text = message(errors.LogPlacementError, transform(f), 1.0)
    has(text, "'now'", line_of(__file__, "compile time"), "ensure_compile_time_eval", "Hint:")
    assert f(1.0) == jax.jit(f)(1.0) == 1
