"""Error texts: each says what, where in the user's source, and what to do next."""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import errors
from sawlog._optional import require


def line_of(marker: str) -> str:
    """`file:line` of the one line here that ends in the comment `# marker`."""
    with open(__file__) as source:
        found = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1, (marker, found)
    return f"{__file__}:{found[0]}"


def message(kind: type[BaseException], fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The text of the error that a call raises, which is of exactly this class."""
    with pytest.raises(kind) as caught:
        fun(*args, **kwargs)
    assert type(caught.value) is kind
    assert isinstance(caught.value, errors.SawlogError)
    return str(caught.value)


def has(text: str, *words: str) -> None:
    assert [word for word in words if word not in text] == []


# -- log -------------------------------------------------------------------------------------------

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
    has(text, line_of(case), word)
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
    has(text, "'k'", line_of(f"{name} 1"), line_of(f"{name} 2"), "Hint:", *MISMATCHES[program])


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

    assert message(errors.LogMismatchError, sawlog.spool(f), 1.0).count(line_of("same line")) == 2


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
    has(text, line_of(f"{marker} log"), line_of(f"{marker} loop"), "Hint:")
    has(text, "capacity=", "reduce=", "sawlog.tap")
    assert sawlog.spool(program, argnames="other")(1.0)[1] == {}
    assert sawlog.strip(program)(1.0) == program(1.0)


def test_a_log_in_the_condition_of_a_loop() -> None:
    def cond(v: Any) -> Any:
        sawlog.log({"v": v})  # condition log
        return v < 10

    fun = lambda x: lax.while_loop(cond, lambda v: v * 2, x)
    has(message(errors.UnsupportedLoopError, sawlog.spool(fun), 1.0), line_of("condition log"))


def reduce_program(x: Any) -> Any:
    def add(a: Any, b: Any) -> Any:
        sawlog.log({"a": a})  # reduce log
        return a + b

    return lax.reduce(x, 0.0, add, (0,))  # reduce call


@pytest.mark.parametrize("transform", [sawlog.spool, sawlog.tap], ids=["spool", "tap"])
def test_primitives_without_a_rule(transform: Any) -> None:
    x = jnp.arange(3.0)
    text = message(errors.UnsupportedPrimitiveError, transform(reduce_program), x)
    has(text, "'reduce'", line_of("reduce log"), line_of("reduce call"), "Hint:", "register_rule")
    assert reduce_program(x) == sawlog.strip(reduce_program)(x) == 3
    assert transform(reduce_program, argnames="other")(x) is not None


@pytest.mark.parametrize("transform", [sawlog.spool, sawlog.tap], ids=["spool", "tap"])
def test_compile_time_evaluation(transform: Any) -> None:
    def f(x: Any) -> Any:
        with jax.ensure_compile_time_eval():
            sawlog.log({"now": 1.0})  # compile time
        return x

    text = message(errors.LogPlacementError, transform(f), 1.0)
    has(text, "'now'", line_of("compile time"), "ensure_compile_time_eval", "Hint:")
    assert f(1.0) == jax.jit(f)(1.0) == 1


# -- options ---------------------------------------------------------------------------------------


def fine(x: Any) -> Any:
    sawlog.log({"x": x})
    return x


BAD_OPTIONS = {
    "reduce": (lambda: sawlog.spool(fine, reduce="average"), ["'average'", "mean", "Hint:"]),
    "reduce by key": (lambda: sawlog.spool(fine, reduce={"x": "avg"}), ["'avg'", "mean", "Hint:"]),
    "reduce a number": (lambda: sawlog.spool(fine, reduce=3), ["3", "mean", "Hint:"]),
    "logs.reduce": (lambda: sawlog.spool(fine)(1.0)[1].reduce("avg"), ["'avg'", "mean", "Hint:"]),
    "interval zero": (lambda: sawlog.spool(fine, interval=0), ["interval", "0"]),
    "interval negative": (lambda: sawlog.spool(fine, interval=-2), ["interval", "-2"]),
    "interval float": (lambda: sawlog.spool(fine, interval=1.5), ["interval", "1.5"]),
    "interval bool": (lambda: sawlog.spool(fine, interval=True), ["interval", "True"]),
    "argnames": (lambda: sawlog.spool(fine, argnames=["x", 3]), ["argnames", "3"]),
    "argnames number": (lambda: sawlog.spool(fine, argnames=3), ["argnames", "3"]),
    "tags": (lambda: sawlog.spool(fine, tags=[None]), ["tags", "None"]),
    "tags number": (lambda: sawlog.spool(fine, tags=3), ["tags", "3"]),
    "prefix": (lambda: sawlog.spool(fine, prefix=3), ["prefix", "3"]),
    "tap argnames": (lambda: sawlog.tap(fine, argnames=[3]), ["argnames", "3"]),
    "tap tags": (lambda: sawlog.tap(fine, tags=3), ["tags", "3"]),
    "tap prefix": (lambda: sawlog.tap(fine, prefix=3), ["prefix", "3"]),
    "callback": (lambda: sawlog.tap(fine, 3), ["callback", "int", "Hint:"]),
    "spool": (lambda: sawlog.spool(3), ["spool", "int", "spool(f)(x)", "Hint:"]),
    "tap": (lambda: sawlog.tap(np.float32(1)), ["tap", "float32", "tap(f)(x)", "Hint:"]),
    "strip": (lambda: sawlog.strip("f"), ["strip", "str", "strip(f)(x)", "Hint:"]),
    "slice": (lambda: sawlog.logdict({"a": jnp.arange(3)}).slice[1], ["slice", "1", "Hint:"]),
    "steps": (lambda: sawlog.logdict({"a": 1}, step={"b": 1}), ["'step'", "'b'"]),
    "argument": (lambda: sawlog.spool(lambda x, y: x)(1.0, y={"k": set()}), ["k", "set", "Hint:"]),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(case: str) -> None:
    call, words = BAD_OPTIONS[case]
    has(message(errors.ArgumentError, call), *words)


def test_the_path_of_an_argument_reads_like_the_call() -> None:
    """`args[1]['u']` rather than positions in a pytree of sawlog's own."""

    def f(x: Any, other: Any) -> Any:
        return x

    text = message(errors.ArgumentError, sawlog.spool(f), 1.0, {"u": set()})
    assert re.search(r"(args\[1\]|other)\['u'\]", text)
    text = message(errors.ArgumentError, sawlog.spool(f), 1.0, other={"u": set()})
    assert re.search(r"(kwargs\['other'\]|other)\['u'\]", text)


def test_the_hint_for_a_callback_is_about_callbacks() -> None:
    text = message(errors.ArgumentError, sawlog.tap, fine, 3)
    assert "callback(f)(x)" not in text
    has(text, "Hint:", "tap(")


def test_the_reverse_of_entries_that_may_be_missing() -> None:
    def f(x: Any) -> None:
        lax.map(lambda v: lax.cond(v > 0, lambda: sawlog.log({"v": v}), lambda: None), x)

    reverse = jax.jit(lambda x: sawlog.spool(f)(x)[1].slice[::-1])
    has(message(errors.ArgumentError, reverse, jnp.ones(3)), "'v'", "-1", "Hint:")


# -- reading logs ----------------------------------------------------------------------------------


def test_unknown_step_axes_list_the_known_ones() -> None:
    logs = sawlog.logdict({"a": 1, "b": 2}, step={"a": 1}, episode={"b": 2})
    with pytest.raises(AttributeError) as caught:
        logs.stpe  # noqa: B018
    has(str(caught.value), "'stpe'", "episode, step", "Hint:")
    with pytest.raises(AttributeError, match="none"):
        sawlog.logdict({"a": 1}).step  # noqa: B018
    with pytest.raises(AttributeError, match="_private"):
        logs._private  # noqa: B018
    assert not hasattr(logs, "other")


def test_missing_keys() -> None:
    logs = sawlog.spool(fine)(1.0)[1]
    with pytest.raises(errors.UnknownLogError, match="missing"):
        logs["missing"]
    with pytest.raises(KeyError, match="missing"):
        logs.entries()["missing"]


# -- the package -----------------------------------------------------------------------------------


def test_missing_step_axes() -> None:
    logs = sawlog.logdict({"loss": jnp.arange(3.0)}, step={"loss": jnp.arange(3)})
    text = message(errors.UnknownLogError, lambda: logs.steps["stp"])
    has(text, "Nothing has a step axis 'stp'", "Hint:", "'step'")
    text = message(errors.UnknownLogError, lambda: logs.step["los"])
    has(text, "step axis 'step' under 'los'", "Hint:", "'loss'")
    doubled = jax.tree.map(lambda x: 2 * x, logs.steps)  # still a pytree, and a dict
    np.testing.assert_array_equal(doubled["step"]["loss"], [0, 2, 4])
    assert dict(logs.step).keys() == {"loss"}


def test_a_picture_of_traced_logs() -> None:
    def f(x):
        logs = sawlog.spool(lambda x: [sawlog.log({"x": x * i}) for i in range(3)] and x)(x)[1]
        logs.plot()

    has(message(errors.ArgumentError, jax.jit(f), 1.0), "traced", "Hint:", "draw them outside")


def test_arguments_of_save_and_concat(tmp_path: Any) -> None:
    text = message(errors.ArgumentError, sawlog.save, "a", "b")
    has(text, "got str instead of logs", "Hint:", 'sawlog.save("runs/1", logs)')
    logs = sawlog.logdict({"x": jnp.arange(2.0)})
    has(message(errors.ArgumentError, sawlog.save, logs, logs), "got logdict instead of a path")
    has(message(errors.ArgumentError, sawlog.save, tmp_path / "a", None), "NoneType", "logs")
    assert not list(tmp_path.iterdir())
    for joined in (sawlog.concat(logs, logs), sawlog.concat([logs, logs]), logs + logs):
        np.testing.assert_array_equal(joined["x"], [0, 1, 0, 1])
    np.testing.assert_array_equal(sawlog.concat(logs)["x"], [0, 1])
    assert list(sawlog.concat()) == list(sawlog.concat([])) == []
    has(message(errors.ArgumentError, sawlog.concat, logs, {"x": 1}), "dict among them", "Hint:")


def test_missing_package() -> None:
    with pytest.raises(errors.MissingPackageError) as caught:
        require("no_such_package_at_all", "wandb", "the W&B sink")
    has(str(caught.value), "the W&B sink", "'no_such_package_at_all'", "Hint:", '"sawlog[wandb]"')
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "no_such_package_at_all"
    assert isinstance(caught.value.__cause__, ImportError)
    submodule = "no_such_package_at_all.inner"
    with pytest.raises(errors.MissingPackageError, match="no_such_package_at_all"):
        require(submodule, "x", "y")
    assert require("json", "none", "this test") is sys.modules["json"]


def test_a_broken_package_is_not_called_missing(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "broken_package_for_sawlog.py").write_text("import another_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(ModuleNotFoundError, match="another_that_is_not_there") as caught:
        require("broken_package_for_sawlog", "x", "y")
    assert not isinstance(caught.value, errors.SawlogError)


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError) as caught:
        sawlog.spol  # noqa: B018
    has(str(caught.value), "'spol'", "Hint:", "spool", "tap")


def test_callback_error() -> None:
    """Inside of a compiled program JAX wraps what the callback raised; the text survives."""

    def callback(logs: Any) -> None:
        raise LookupError("no such run")

    def f(x: Any) -> Any:
        sawlog.log({"x": x})  # callback site
        return x

    def run() -> None:
        jax.block_until_ready(jax.jit(sawlog.tap(f, callback))(1.0))
        jax.effects_barrier()

    with pytest.raises(Exception, match="no such run") as caught:
        run()
    has(str(caught.value), "CallbackError", "LookupError", "'x'", line_of("callback site"))


FAMILY = {
    "MissingPackageError": ImportError,
    "LogValueError": TypeError,
    "ArgumentError": TypeError,
    "LogMismatchError": ValueError,
    "UnsupportedPrimitiveError": NotImplementedError,
    "UnsupportedLoopError": NotImplementedError,
    "LogPlacementError": RuntimeError,
    "CallbackError": RuntimeError,
    "UnknownLogError": KeyError,
}


def test_every_error_has_a_base_and_a_test() -> None:
    classes = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SawlogError)
    }
    elsewhere = {name for name, value in classes.items() if issubclass(value, errors.StoreError)}
    elsewhere |= {"CaptureError", "UncoveredError", "WeightsMismatchError"}  # in tests/torch
    elsewhere |= {"MixedExamplesError"}  # in tests/torch/test_summands.py
    elsewhere |= {"UnsupportedJaxError"}  # in test_versions.py
    elsewhere |= {"SinkTimeoutError"}  # in tests/sinks
    elsewhere |= {"ProcessLostError"}  # in tests/torch/test_ranks.py
    elsewhere |= {"ReplayError"}  # in tests/jax/training
    assert set(classes) - elsewhere == {"SawlogError", *FAMILY}
    with open(__file__) as source:
        text = source.read()
    for name, base in FAMILY.items():
        assert issubclass(classes[name], base)
        assert classes[name].__doc__
        assert not hasattr(builtins, name)
        assert f"errors.{name}" in text or name == "CallbackError"
