"""`tap`: which callbacks come, in which order, with what, and what happens when one fails."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from tests.jax.same import gaps
from tests.thorough import pairs

THIS_FILE = __file__


def line_of(marker: str) -> int:
    """The line of this file that carries `# marker` (a comment, once)."""
    with open(THIS_FILE) as source:
        found = [i for i, line in enumerate(source, 1) if line.rstrip().endswith(f"# {marker}")]
    assert len(found) == 1
    return found[0]


def tapped(fun: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, list[Any]]:
    """The output, and what the callback was given, call by call."""
    seen: list[Any] = []
    out = sawlog.tap(fun, seen.append, **options)(*args)
    return out, seen


def called(transformed: Callable[[Callable], Callable], *args: Any) -> tuple[Any, list[Any]]:
    """The same where the tap sits inside: `transformed(callback)` makes the function."""
    seen: list[Any] = []
    out = jax.block_until_ready(transformed(seen.append)(*args))
    jax.effects_barrier()
    return out, seen


def column(seen: list[Any], key: str) -> list[Any]:
    """The values of one key, callback by callback."""
    return [one[key].tolist() for one in seen if key in one]


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


def labelled(x: Any) -> Any:
    sawlog.log({"a": x, "b": 2 * x}, tags="first")
    sawlog.log({"b": 3 * x, "ab": 4 * x}, tags=("second", "both"))
    sawlog.log("c", 5 * x, tags=["both"])
    return x


@pytest.mark.turns(2)
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


def failing_site(x: Any) -> Any:
    def body(c: Any, i: Any) -> Any:
        sawlog.log({"c": c}, step=i)  # the failing site
        return c + 1, None

    return lax.scan(body, x, jnp.arange(6))[0]


class Boom(Exception):
    """What the callbacks here raise."""


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
    assert f"{THIS_FILE}:{line_of('the failing site')}" in note
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
        assert f"{THIS_FILE}:{line_of('the failing site')}" in text
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


# -- vmap ------------------------------------------------------------------------------------------


def pair(x: Any) -> Any:
    sawlog.log({"x": x}, step=3)
    sawlog.log({"const": 1.0, "y": jnp.stack([x, -x])})
    return x * 2


def test_tap_of_vmap_calls_once_for_all_lanes() -> None:
    xs = jnp.arange(3.0)
    for fun in (jax.vmap(pair), jax.jit(jax.vmap(pair)), jax.vmap(jax.jit(pair))):
        out, seen = tapped(fun, xs)
        np.testing.assert_array_equal(out, 2 * xs)
        assert [set(one) for one in seen] == [{"x"}, {"const", "y"}]
        assert seen[0]["x"].tolist() == [0, 1, 2]
        assert seen[0].step["x"].tolist() == [3, 3, 3]
        assert seen[1]["const"].tolist() == [1, 1, 1]
        assert seen[1]["y"].tolist() == [[0, 0], [1, -1], [2, -2]]
        assert all(gaps(one) == set() for one in seen)


def test_vmap_of_tap_calls_once_for_each_lane() -> None:
    xs = jnp.arange(3.0)
    for wrap in (lambda f: f, jax.jit):
        out, seen = called(lambda c, wrap=wrap: wrap(jax.vmap(sawlog.tap(pair, c))), xs)
        np.testing.assert_array_equal(out, 2 * xs)
        assert column(seen, "x") == [0, 1, 2]
        assert column(seen, "const") == [1, 1, 1]
        assert column(seen, "y") == [[0, 0], [1, -1], [2, -2]]
        assert [int(one.step["x"]) for one in seen if "x" in one] == [3, 3, 3]


def test_vmaps_on_both_sides() -> None:
    xs = jnp.arange(6.0).reshape(2, 3)
    _, seen = called(lambda c: jax.vmap(sawlog.tap(jax.vmap(pair), c)), xs)
    assert column(seen, "x") == [[0, 1, 2], [3, 4, 5]]
    _, seen = called(lambda c: jax.vmap(jax.vmap(sawlog.tap(pair, c))), xs)
    assert column(seen, "x") == [0, 1, 2, 3, 4, 5]
    _, seen = tapped(jax.vmap(jax.vmap(pair)), xs)
    assert column(seen, "x") == [[[0, 1, 2], [3, 4, 5]]]


def branching(x: Any) -> Any:
    def yes(v: Any) -> Any:
        sawlog.log({"yes": v}, step=v)
        return v

    def no(v: Any) -> Any:
        sawlog.log({"no": -v})
        return -v

    return lax.cond(x > 1, yes, no, x)


def test_vmap_of_cond() -> None:
    xs = jnp.arange(4)
    for wrap in (lambda f: f, jax.jit):
        out, seen = tapped(wrap(jax.vmap(branching)), xs)
        np.testing.assert_array_equal(out, [0, -1, 2, 3])
        assert sorted(key for one in seen for key in one) == ["no", "yes"]
        by_key = {key: one for one in seen for key in one}
        yes, no = by_key["yes"], by_key["no"]
        assert yes.mask["yes"].tolist() == [False, False, True, True]
        assert no.mask["no"].tolist() == [True, True, False, False]
        assert yes["yes"][2:].tolist() == yes.step["yes"][2:].tolist() == [2, 3]
        assert no["no"][:2].tolist() == [0, -1]
        _, seen = called(lambda c, wrap=wrap: wrap(jax.vmap(sawlog.tap(branching, c))), xs)
        assert column(seen, "yes") == [2, 3]
        assert [one.step["yes"].tolist() for one in seen if "yes" in one] == [2, 3]
        assert column(seen, "no") == [0, -1]
        assert len(seen) == 4
        assert all(gaps(one) == set() for one in seen)


def test_vmap_of_cond_where_all_lanes_agree() -> None:
    """A branch that no lane took does not call."""
    _, seen = tapped(jax.vmap(branching), jnp.array([5, 6]))
    assert [{key: value.tolist() for key, value in one.items()} for one in seen] == [
        {"yes": [5, 6]}
    ]
    assert gaps(seen[0]) == set()


def test_prng_keys_under_vmap_of_cond() -> None:
    keys = jax.random.split(jax.random.key(0), 3)

    def f(key: Any, on: Any) -> None:
        lax.cond(on, lambda: sawlog.log({"k": key}), lambda: None)

    on = jnp.array([True, False, True])
    _, seen = called(lambda c: jax.vmap(sawlog.tap(f, c)), keys, on)
    assert len(seen) == 2
    assert jnp.array_equal(jnp.stack([one["k"] for one in seen]), keys[np.array([0, 2])])
    _, (one,) = tapped(jax.vmap(f), keys, on)
    assert one.mask["k"].tolist() == [True, False, True]
    assert jnp.array_equal(one["k"][np.array([0, 2])], keys[np.array([0, 2])])


def counting(n: Any) -> Any:
    def body(c: Any) -> Any:
        sawlog.log({"i": c}, step=c)
        return c + 1

    return lax.while_loop(lambda c: c < n, body, 0)


def test_vmap_of_while() -> None:
    ns = jnp.array([1, 3, 0])
    for wrap in (lambda f: f, jax.jit):
        out, seen = tapped(wrap(jax.vmap(counting)), ns)
        np.testing.assert_array_equal(out, ns)
        assert len(seen) == 3
        masks = [one.mask["i"].tolist() for one in seen]
        assert masks == [[True, True, False], [False, True, False], [False, True, False]]
        assert [one["i"][1].tolist() for one in seen] == [0, 1, 2]
        assert [one.step["i"][1].tolist() for one in seen] == [0, 1, 2]
        assert seen[0]["i"][0] == 0
        out, seen = called(lambda c, wrap=wrap: wrap(jax.vmap(sawlog.tap(counting, c))), ns)
        np.testing.assert_array_equal(out, ns)
        assert column(seen, "i") == [0, 0, 1, 2]


def test_vmap_of_while_in_scan_with_cond() -> None:
    """Lanes of different lengths, and a branch inside."""

    def f(n: Any) -> Any:
        def body(c: Any) -> Any:
            odd = lambda: sawlog.log({"odd": c})
            lax.cond(c % 2 == 1, odd, lambda: None)
            return c + 1

        step = lambda carry, _: (carry, lax.while_loop(lambda c: c < n, body, 0))
        return lax.scan(step, 0, length=2)[1]

    ns = jnp.array([4, 1, 2])
    _, seen = called(lambda c: jax.vmap(sawlog.tap(f, c)), ns)
    assert column(seen, "odd") == [1, 1, 3] * 2
    _, seen = tapped(jax.vmap(f), ns)
    lanes = [[], [], []]
    for one in seen:
        mask = one.mask.get("odd", np.ones(3, bool))
        for lane in np.flatnonzero(mask):
            lanes[lane].append(int(one["odd"][lane]))
    assert lanes == [[1, 3] * 2, [], [1] * 2]


# -- devices ---------------------------------------------------------------------------------------


def sharded(size: int, kind: AxisType = AxisType.Auto) -> tuple[Any, Any]:
    """A mesh of four devices, and the first whole numbers spread over it."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    return mesh, jax.device_put(jnp.arange(float(size)), NamedSharding(mesh, P("d")))


axis_types = pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=str)


@pytest.mark.turns(2)
@axis_types
@pytest.mark.parametrize("jit", ["none", "inside", "outside"])
def test_shard_map_calls_once_for_each_shard(jit: str, kind: AxisType) -> None:
    mesh, x = sharded(8, kind)

    def local(x: Any) -> Any:
        sawlog.log({"x": x, "sum": lax.psum(x.sum(), "d")}, shard=lax.axis_index("d"))
        return 2 * x

    fun = jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    fun = jax.jit(fun) if jit == "inside" else fun
    around = jax.jit if jit == "outside" else (lambda f: f)
    out, seen = called(lambda c: around(sawlog.tap(fun, c)), x)
    np.testing.assert_array_equal(out, 2 * np.arange(8.0))
    assert len(seen) == 4
    shards = {int(one.shard["x"]): one for one in seen}
    assert set(shards) == {0, 1, 2, 3}
    for i, one in shards.items():
        assert one["x"].tolist() == [2 * i, 2 * i + 1]
        assert one["sum"] == 28


def test_shard_map_keeps_the_order_of_each_shard() -> None:
    mesh, x = sharded(4)

    def local(x: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            sawlog.log({"c": c}, step=i, shard=lax.axis_index("d"))
            return c + 1, None

        return lax.scan(body, x, jnp.arange(5))[0]

    fun = jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    _, seen = tapped(fun, x)
    assert len(seen) == 20
    for shard in range(4):
        mine = [one for one in seen if one.shard["c"] == shard]
        assert [int(one.step["c"]) for one in mine] == [0, 1, 2, 3, 4]


def test_an_exception_in_shard_map() -> None:
    """Raised once, and the program ends."""
    mesh, x = sharded(4)
    seen = []

    def local(x: Any) -> Any:
        sawlog.log({"x": x})
        return lax.psum(x, "d")

    def callback(logs: Any) -> None:
        seen.append(logs)
        raise Boom

    fun = jax.shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P())
    with pytest.raises(Boom):
        sawlog.tap(fun, callback)(x)
    assert len(seen) == 1
    assert len(tapped(fun, x)[1]) == 4


@pytest.mark.turns(2)
@axis_types
@pytest.mark.parametrize("jit", ["none", "inside", "outside"])
def test_sharded_arguments_call_once_with_the_whole_value(jit: str, kind: AxisType) -> None:
    _, x = sharded(8, kind)

    def f(x: Any) -> Any:
        def body(c: Any, i: Any) -> Any:
            sawlog.log({"c": c}, step=i)
            return c + 1, None

        sawlog.log({"x": x, "sum": x.sum()})
        return lax.scan(body, x, jnp.arange(2))[0]

    fun = jax.jit(f) if jit == "inside" else f
    around = jax.jit if jit == "outside" else (lambda f: f)
    out, seen = called(lambda c: around(sawlog.tap(fun, c)), x)
    np.testing.assert_array_equal(out, np.arange(8.0) + 2)
    assert [set(one) for one in seen] == [{"x", "sum"}, {"c"}, {"c"}]
    assert seen[0]["x"].tolist() == list(range(8))
    assert seen[0]["sum"] == 28
    assert [one["c"][0].tolist() for one in seen[1:]] == [0, 1]


def test_arguments_on_another_device() -> None:
    x = jax.device_put(jnp.arange(3.0), jax.devices()[2])
    out, seen = tapped(pair, x)
    assert column(seen, "x") == [[0, 1, 2]]
    assert out.devices() == {jax.devices()[2]}


# -- several taps ----------------------------------------------------------------------------------


def test_tapping_twice_takes_from_the_inside() -> None:
    inner, outer = [], []

    def f(x: Any) -> Any:
        sawlog.log({"outside": x})
        return sawlog.tap(labelled, inner.append, argnames="a")(x)

    out = sawlog.tap(f, outer.append)(1.0)
    jax.effects_barrier()
    assert out == 1
    assert inner == [{"a": 1}]
    assert outer == [{"outside": 1}]
    again = []
    sawlog.tap(sawlog.tap(labelled, inner.append), again.append)(1.0)
    assert again == []


def with_a_rule(rule: str) -> Callable[..., Any]:
    """A function that logs "own", whose rule logs "rule"; mapped or differentiated in its way."""

    def double(x: Any) -> Any:
        sawlog.log({"own": x})
        return 2 * x

    if rule == "custom_vmap":
        mapped = jax.custom_batching.custom_vmap(double)
        mapped.def_vmap(lambda size, there, xs: (sawlog.log({"rule": xs}), (2 * xs, True))[1])
        return lambda x: jax.vmap(sawlog.spool(mapped))(jnp.stack([x, x]))[1]["own"]
    if rule == "custom_jvp":
        doubled = jax.custom_jvp(double)
        doubled.defjvp(lambda x, t: (sawlog.log({"rule": t[0]}), (2 * x[0], 2 * t[0]))[1])
        return lambda x: jax.jvp(sawlog.spool(doubled), (x,), (x,))[0][1]["own"]
    halves = jax.custom_vjp(double)
    halves.defvjp(
        lambda x: (sawlog.log({"rule": x}), (2 * x, None))[1],
        lambda _, t: (sawlog.log({"rule": t}), (2 * t,))[1],
    )
    return lambda x: jax.vjp(sawlog.spool(halves), x)[0][1]["own"]


@pytest.mark.parametrize("rule", ["custom_vmap", "custom_jvp", "custom_vjp"])
def test_what_a_rule_inside_of_spool_logs_reaches_no_tap(rule: str) -> None:
    """The spool has taken the log of the function; its rule only gives the outputs."""
    seen: list[Any] = []
    own = sawlog.tap(with_a_rule(rule), seen.append)(jnp.float32(3))
    jax.effects_barrier()
    assert np.unique(own).tolist() == [3]
    assert seen == []


def test_one_function_tapped_and_spooled_inside_another() -> None:
    seen = []

    def f(x: Any) -> Any:
        out, logs = sawlog.spool(labelled)(x)
        sawlog.tap(labelled, seen.append, argnames="c")(x)
        return logs["a"] + out

    for wrap in (lambda f: f, jax.jit):
        seen.clear()
        assert wrap(f)(2.0) == 4
        jax.effects_barrier()
        assert seen == [{"c": 10}]


def test_a_jitted_tap_called_twice() -> None:
    seen = []
    fun = jax.jit(sawlog.tap(pair, seen.append, argnames="x"))
    for x in (1.0, 2.0):
        fun(x).block_until_ready()
    jax.effects_barrier()
    assert column(seen, "x") == [1, 2]


def test_two_callbacks_do_not_retrace() -> None:
    traces = []

    def f(x: Any) -> Any:
        traces.append(x)
        sawlog.log({"x": x})
        return x

    one, two = [], []
    sawlog.tap(f, one.append)(1.0)
    sawlog.tap(f, two.append, prefix="p/")(2.0)
    sawlog.tap(f, one.append)(3.0)
    assert len(traces) == 1
    assert one == [{"x": 1}, {"x": 3}]
    assert two == [{"p/x": 2}]


# -- differentiation and loops around -------------------------------------------------------------


def chain(x: Any) -> Any:
    sawlog.log({"first": x})
    y = x * x

    def body(c: Any, i: Any) -> Any:
        sawlog.log({"loop": c}, step=i)
        return c * x, None

    y = lax.scan(body, y, jnp.arange(2))[0]
    sawlog.log({"last": y})
    return y


CHAIN = [("first", 2), ("loop", 4), ("loop", 8), ("last", 16)]


def one_by_one(seen: list[Any]) -> list[tuple[str, float]]:
    assert all(len(one) == 1 for one in seen)
    return [(key, float(value)) for one in seen for key, value in one.items()]


AROUND = {
    "grad": lambda f: jax.grad(f),
    "value_and_grad": lambda f: jax.value_and_grad(f),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (1.0,)),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](1.0),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](1.0),
    "remat": lambda f: jax.checkpoint(f),
    "grad of remat": lambda f: jax.grad(jax.checkpoint(f)),
    "grad of jit": lambda f: jax.grad(jax.jit(f)),
    "hessian": lambda f: jax.hessian(f),
    "jacfwd": lambda f: jax.jacfwd(f),
    "jacrev": lambda f: jax.jacrev(f),
}


@pytest.mark.turns(4)
@pytest.mark.parametrize(("around", "jit"), pairs(AROUND, [False, True], few=1))
def test_derivatives_call_once_and_in_order(around: str, jit: bool) -> None:
    """With tap inside of the derivative, and outside."""
    wrap = jax.jit if jit else (lambda f: f)
    want = AROUND[around](chain)(2.0)
    inside, seen = called(lambda c: wrap(AROUND[around](sawlog.tap(chain, c))), 2.0)
    assert one_by_one(seen) == CHAIN
    outside, seen = called(lambda c: wrap(sawlog.tap(AROUND[around](chain), c)), 2.0)
    assert one_by_one(seen) == CHAIN
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), inside, want)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-6), outside, want)


def test_scan_of_tap() -> None:
    def make(callback: Any) -> Any:
        tap = sawlog.tap(chain, callback)
        return lambda x: lax.scan(lambda c, _: (tap(c) / 8, None), x, length=2)[0]

    out, seen = called(make, 2.0)
    assert out == 2
    assert one_by_one(seen) == CHAIN * 2


def test_grad_of_scan_of_tap() -> None:
    """A value that does not change in the loop is still logged in each iteration."""

    def make(callback: Any) -> Any:
        def f(w: Any) -> Any:
            def body(c: Any, x: Any) -> Any:
                sawlog.log({"w": w, "c": c})
                return c + w * x, None

            return lax.scan(body, 0.0, jnp.arange(3.0))[0]

        return jax.grad(sawlog.tap(f, callback))

    out, seen = called(make, 2.0)
    assert out == 3
    assert column(seen, "w") == [2, 2, 2]
    assert column(seen, "c") == [0, 0, 2]


# -- the callback ----------------------------------------------------------------------------------


def test_callbacks_may_use_jax() -> None:
    seen = []

    def callback(logs: Any) -> None:
        seen.append(float(jnp.sum(jnp.asarray(logs["x"]) ** 2)))

    def f(x: Any) -> Any:
        return lax.scan(lambda c, i: (c + 1, sawlog.log({"x": c})), x, jnp.arange(3))[0]

    sawlog.tap(f, callback)(jnp.zeros(2))
    assert seen == [0, 2, 8]


def test_callbacks_may_use_the_logdict() -> None:
    kept = []

    def callback(logs: Any) -> None:
        kept.append(logs)

    sawlog.tap(failing_site, callback)(0)
    total = kept[0]
    for one in kept[1:]:
        total = total + one
    assert total["c"].tolist() == [0, 1, 2, 3, 4, 5]
    assert total.step["c"].tolist() == [0, 1, 2, 3, 4, 5]
    assert isinstance(total["c"], np.ndarray)
    assert total.reduce("mean")["c"] == 2.5


def test_callbacks_from_several_threads_go_to_the_right_place() -> None:
    """One function, one compiled program, many callbacks at the same time."""
    start, results, failures = threading.Barrier(6), {}, []

    def f(x: Any) -> Any:
        return lax.scan(lambda c, i: (c, sawlog.log({"x": c}, step=i)), x, jnp.arange(20))[0]

    def work(number: int) -> None:
        try:
            start.wait(30)
            for _ in range(5):
                seen: list[Any] = []
                sawlog.tap(f, seen.append)(number)
                results.setdefault(number, []).append([int(one["x"]) for one in seen])
                assert [int(one.step["x"]) for one in seen] == list(range(20))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert results == {number: [[number] * 20] * 5 for number in range(6)}


def test_an_exception_in_one_thread_stays_there() -> None:
    start, caught, seen = threading.Barrier(2), [], []

    def bad(logs: Any) -> None:
        raise Boom

    def work() -> None:
        start.wait(30)
        for _ in range(5):
            try:
                sawlog.tap(failing_site, bad)(0)
            except Boom as error:
                caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    start.wait(30)
    for _ in range(5):
        sawlog.tap(failing_site, seen.append)(0)
    thread.join(60)
    assert len(caught) == 5
    assert column(seen, "c") == [*range(6)] * 5


def test_the_callback_is_checked() -> None:
    with pytest.raises(sawlog.SawlogError, match=re.compile("callback", re.IGNORECASE)):
        sawlog.tap(pair, "print")
