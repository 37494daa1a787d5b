"""tap under vmap, and on several devices."""

from __future__ import annotations

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

from .tap_programs import Boom, called, column, pair, tapped

# -- vmap ------------------------------------------------------------------------------------------


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
