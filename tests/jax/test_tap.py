"""tap: order, content and exceptions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import sawlog

from . import tap_programs
from .tap_programs import Boom, called, column, failing_site, labelled, pair, tapped

PROGRAMS = tap_programs.__file__


def line_of(marker: str) -> int:
    """The line of this file that carries `# marker` (a comment, once)."""
    with open(PROGRAMS) as source:
        found = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1
    return found[0]


# -- order and content -----------------------------------------------------------------------------


def nested(x: Any) -> Any:
    def outer(i: Any, c: Any) -> Any:
        def inner(c: Any, j: Any) -> Any:
            sawlog.log({"in": c}, i=i, j=j)
            return c + 1, None

        sawlog.log({"out": c, "twice": 2 * c}, i=i)
        c = lax.scan(inner, c, jnp.arange(2))[0]
        sawlog.log({"end": c})
        return c

    sawlog.log({"start": x})
    return lax.fori_loop(0, 3, outer, x)


NESTED = [("start", 0)]

for _i in range(3):
    NESTED += [("out", 2 * _i), ("in", 2 * _i), ("in", 2 * _i + 1), ("end", 2 * _i + 2)]


@pytest.mark.parametrize("jit", ["none", "inside", "outside", "both"])
def test_order_in_nested_loops(jit: str) -> None:
    fun = jax.jit(nested) if jit in ("inside", "both") else nested
    around = jax.jit if jit in ("outside", "both") else (lambda f: f)
    out, seen = called(lambda callback: around(sawlog.tap(fun, callback)), 0)
    assert out == 6
    assert [(next(iter(one)), int(next(iter(one.values())))) for one in seen] == NESTED
    inner = [one for one in seen if "in" in one]
    assert [(int(one.i["in"]), int(one.j["in"])) for one in inner] == [
        (i, j) for i in range(3) for j in range(2)
    ]
    together = [one for one in seen if "out" in one]
    assert len(together) == 3
    assert all(set(one) == {"out", "twice"} == set(one.i) for one in together)
    assert all(one["twice"] == 2 * one["out"] for one in together)
    assert all(one.steps == {} for one in seen if "end" in one or "start" in one)


def test_values_are_numpy() -> None:
    key = jax.random.key(0)

    def f(x: Any, key: Any) -> None:
        tree = {"a": (x, [3]), "b": True}
        sawlog.log({"x": x, "h": x.astype(jnp.bfloat16), "k": key, "t": tree}, step=1)
        sawlog.log({"z": jnp.zeros((0, 2)), "c": 1j})

    _, (one, two) = tapped(f, jnp.arange(3.0), key)
    assert type(one) is type(two) is sawlog.logdict
    assert set(one) == {"x", "h", "k", "t"}
    plain = [one["x"], one["h"], *jax.tree.leaves(one["t"]), *one.step.values(), *two.values()]
    assert len(plain) == 11
    assert all(isinstance(leaf, (np.ndarray, np.generic)) for leaf in plain)
    assert one["h"].dtype == jnp.bfloat16
    assert one["x"].tolist() == one["t"]["a"][0].tolist() == [0, 1, 2]
    assert one["t"]["a"][1][0] == 3
    assert one["t"]["b"].dtype == bool
    assert jnp.array_equal(one["k"], key)
    assert {name: int(step) for name, step in one.step.items()} == dict.fromkeys("xhkt", 1)
    assert two["z"].shape == (0, 2)
    assert two["c"] == 1j


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [{"a": 1, "b": 2}, {"b": 3, "ab": 4}, {"c": 5}]),
        ({"argnames": "ab"}, [{"ab": 4}]),
        ({"argnames": ["b", "c"]}, [{"b": 2}, {"b": 3}, {"c": 5}]),
        ({"argnames": "nothing"}, []),
        ({"tags": "both"}, [{"b": 3, "ab": 4}, {"c": 5}]),
        ({"tags": ["first", "both"]}, [{"a": 1, "b": 2}, {"b": 3, "ab": 4}, {"c": 5}]),
        ({"tags": "both", "argnames": "b"}, [{"b": 3}]),
        ({"prefix": "p/", "argnames": "a"}, [{"p/a": 1}]),
    ],
    ids=str,
)
def test_selection(options: Any, expected: Any) -> None:
    _, seen = tapped(labelled, 1.0, **options)
    assert seen == expected
    _, seen = called(lambda c: jax.jit(sawlog.tap(labelled, c, **options)), 1.0)
    assert seen == expected


def test_default_printing(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            sawlog.log({"x": x, "v": jnp.stack([x, x / 3])}, step=i, episode=7)
            return 2 * x

        sawlog.log({"t": {"a": x, "b": (1, True)}})
        sawlog.log({"long": jnp.arange(20)})
        return lax.fori_loop(0, 2, body, x)

    assert sawlog.tap(f)(1.5) == 6
    assert capsys.readouterr().out.splitlines() == [
        "t={'a': 1.5, 'b': (1, True)}",
        "long=[ 0,  1,  2, ..., 17, 18, 19]",
        "[step 0] [episode 7] x=1.5  v=[1.5, 0.5]",
        "[step 1] [episode 7] x=3.  v=[3., 1.]",
    ]
    sawlog.tap(jax.vmap(lambda x: sawlog.log({"x": x}, step=4)))(jnp.arange(3))
    assert capsys.readouterr().out == "[step 4] x=[0, 1, 2]\n"
    sawlog.tap(lambda: sawlog.log({"m": jnp.zeros((30, 30)), "s": 1}), prefix="p/")()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("p/m=[[")
    assert line.endswith("  p/s=1")
    assert len(line) < 500


def test_the_output_is_that_of_the_function() -> None:
    out, seen = tapped(lambda x: {"y": (x, None), "n": sawlog.log({"x": x})}, 2.0)
    assert out == {"y": (2.0, None), "n": {"x": 2.0}}
    assert column(seen, "x") == [2.0]


def test_returns_after_all_callbacks() -> None:
    """No barrier is needed outside of a trace."""
    seen = []

    def f(x: Any) -> Any:
        return lax.scan(lambda c, i: (c + 1, sawlog.log({"i": i})), x, jnp.arange(50))[0]

    sawlog.tap(f, lambda logs: seen.append(int(logs["i"])))(0)
    assert seen == list(range(50))


def test_unlogged_branches_do_not_call() -> None:
    def f(x: Any) -> Any:
        yes = lambda x: (sawlog.log({"yes": x}), x)[1]
        no = lambda x: (sawlog.log({"no": x}), sawlog.log({"no": x + 1}), x)[2]
        return lax.map(lambda v: lax.cond(v > 0, yes, no, v), x)

    _, seen = tapped(f, jnp.array([1, -1, 2]))
    assert seen == [{"yes": 1}, {"no": -1}, {"no": 0}, {"yes": 2}]


def test_while_loop() -> None:
    def f(x: Any) -> Any:
        def cond(v: Any) -> Any:
            sawlog.log({"cond": v})
            return v < 10

        def body(v: Any) -> Any:
            sawlog.log({"body": v})
            return v * 3

        return lax.while_loop(cond, body, x)

    out, seen = tapped(f, 2)
    assert out == 18
    assert seen == [{"cond": 2}, {"body": 2}, {"cond": 6}, {"body": 6}, {"cond": 18}]
    _, seen = tapped(lambda n: lax.fori_loop(0, n, lambda i, c: (sawlog.log({"i": i}), c)[1], 0), 3)
    assert column(seen, "i") == [0, 1, 2]


# -- exceptions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Boom, KeyError, SystemExit, KeyboardInterrupt])
def test_an_exception_is_raised_as_it_is(make: type[BaseException]) -> None:
    error, seen = make("the message"), []

    def callback(logs: Any) -> None:
        seen.append(int(logs["c"]))
        if logs["c"] == 2:
            raise error

    with pytest.raises(make) as caught:
        sawlog.tap(failing_site, callback)(0)
    assert caught.value is error
    assert seen == [0, 1, 2]
    (note,) = error.__notes__
    assert f"{PROGRAMS}:{line_of('the failing site')}" in note
    assert "'c'" in note
    names = [entry.name for entry in caught.traceback]
    assert names[-1] == "callback"


def test_later_calls_work_after_an_exception() -> None:
    def bad(logs: Any) -> None:
        raise Boom

    seen: list[int] = []
    transformed = sawlog.tap(failing_site, bad)
    for _ in range(2):
        with pytest.raises(Boom):
            transformed(0)
        assert sawlog.tap(failing_site, lambda logs: seen.append(int(logs["c"])))(0) == 6
        assert seen == [0, 1, 2, 3, 4, 5]
        seen.clear()
        assert failing_site(0) == 6
        assert sawlog.spool(failing_site)(0)[0] == 6


@pytest.mark.parametrize("jit", ["outside", "both"])
def test_an_exception_inside_jit_names_the_site(jit: str) -> None:
    seen = []

    def callback(logs: Any) -> None:
        seen.append(int(logs["c"]))
        raise Boom("the message")

    inner = jax.jit(failing_site) if jit == "both" else failing_site
    fun = jax.jit(sawlog.tap(inner, callback))

    def run() -> None:
        jax.block_until_ready(fun(0))
        jax.effects_barrier()

    for _ in range(2):
        seen.clear()
        with pytest.raises(Exception, match="the message") as caught:
            run()
        text = str(caught.value)
        assert f"{PROGRAMS}:{line_of('the failing site')}" in text
        assert "Boom" in text
        assert "tap" in text
        assert seen == [0]
    jax.effects_barrier()
    assert column(called(lambda c: jax.jit(sawlog.tap(failing_site, c)), 0)[1], "c") == [*range(6)]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_exception_in_a_lane_stops_the_others(bad: int) -> None:
    seen = []

    def callback(logs: Any) -> None:
        seen.append(int(logs["x"]))
        if logs["x"] == bad:
            raise Boom(f"lane {bad}")

    def run() -> None:
        jax.vmap(sawlog.tap(pair, callback, argnames="x"))(jnp.arange(3.0)).block_until_ready()
        jax.effects_barrier()

    with pytest.raises(Exception, match=f"lane {bad}"):
        run()
    assert seen == list(range(bad + 1))


def test_an_error_while_tracing_is_not_one_of_the_callback() -> None:
    def f(x: Any) -> Any:
        sawlog.log({"x": x})
        raise Boom("in the function")

    with pytest.raises(Boom, match="in the function") as caught:
        tapped(f, 1.0)
    assert not any("sawlog" in note for note in getattr(caught.value, "__notes__", ()))
