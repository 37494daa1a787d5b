"""Parts put together where the order, the lanes or the names are not the natural ones.

Each of these is one line of the package that larger programs seldom come by; hardly anything here
is compiled.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog import logdict
from sawlog.jax._core import lowering_marks as _marks
from sawlog.jax._core.select import selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.static_arguments import shifted
from sawlog.jax._logdict.entries import LogdictPart, Slot
from sawlog.jax._runs.seeds import key_data, run_name, split_config
from sawlog.loggers import Logger, MemoryLogger

from .place_programs import mesh


def made(key: str, value: Any, mask: Any = None, dropped: Any = None, **slot: Any) -> logdict:
    """Logs of one key, as a program makes them."""
    value = np.asarray(value)
    own = Slot(
        key,
        (),
        stacked=True,
        ndim=value.ndim,
        masked=mask is not None,
        counted=dropped is not None,
        **slot,
    )
    return logdict._of([LogdictPart(value, (), mask, own, dropped)])


# --- Logs one after the other ---------------------------------------------------------------------


def test_steps_are_joined_by_their_names() -> None:
    one = logdict({"x": np.array([1.0])}, step={"x": np.array([1])}, epoch={"x": np.array([10])})
    two = logdict({"x": np.array([2.0])}, epoch={"x": np.array([20])}, step={"x": np.array([2])})
    both = one + two
    assert both.step["x"].tolist() == [1, 2]
    assert both.epoch["x"].tolist() == [10, 20]


@pytest.mark.parametrize(("one", "two", "total"), [(2, 3, 5), (None, 3, 3), (2, None, 2)])
def test_what_was_dropped_adds_up(one: int | None, two: int | None, total: int) -> None:
    first, second = (made("x", [1.0], dropped=n if n is None else np.int32(n)) for n in (one, two))
    assert int((first + second).dropped["x"]) == total


def test_reduced_values_joined_are_reduced_no_more() -> None:
    mean = logdict({"x": np.array([1.0, 3.0], np.float32)}).reduce("mean")
    assert mean.asdict() == {"x": {"mean": 2.0}}
    both = mean + mean
    assert both.asdict()["x"].tolist() == [2.0, 2.0]


WIDE = {
    "int64": np.array([2**40 + 1, 2**40 + 5, 2**40 + 3]),
    "uint64": np.array([2**63 + 2, 2**63 + 6, 2**63 + 4], np.uint64),
    "float64": np.array([1 + 1e-12, 1 + 5e-12, 1 + 3e-12]),
}


@pytest.mark.parametrize("dtype", WIDE)
def test_arrays_of_the_host_keep_their_64_bits(dtype: str) -> None:
    """JAX is set to 32 bits, and what was loaded or made by numpy may have more."""
    values, steps = WIDE[dtype], np.array([2**41, 2**42, 2**43])
    expected = {"max": values[1], "first": values[0], "last": values[2]}
    for mode, value in expected.items():
        logs = logdict({"x": values, "y": jnp.arange(3)}, step={"x": steps, "y": steps})
        logs = logs.reduce(mode)
        assert logs["x"].dtype == values.dtype
        assert logs["x"] == value
        step = steps[0] if mode == "first" else steps[2]
        assert logs.step["x"] == logs.step["y"] == step
        assert logs["y"].dtype == jnp.int32
    tree = logdict({"x": {"a": values, "b": values.astype(np.float32)}}).reduce("max")["x"]
    assert tree["a"] == values[1]
    assert tree["b"].dtype == np.float32
    mean = logdict({"x": WIDE["float64"]}).reduce("mean")["x"]
    assert abs(mean - (1 + 3e-12)) < 1e-15


def test_lanes_that_differ_joined_with_lanes_that_do_not() -> None:
    """Whichever comes first, the mask covers the entries and the lanes of both."""
    mask = np.array([[True, False], [False, True]])
    some = made("x", [[1.0, 2.0], [3.0, 4.0]], mask, batch=1)
    every = made("x", [[5.0, 6.0]], batch=1)
    full = [[True, True]]
    assert (some + every).mask["x"].tolist() == mask.tolist() + full
    assert (every + some).mask["x"].tolist() == full + mask.tolist()


def test_structures_tell_apart_what_is_logged_differently() -> None:
    value = {"x": np.array([1.0])}
    plain, stepped = logdict(value), logdict(value, step={"x": np.array([0])})
    masked = made("x", [[1.0, 2.0]], np.array([[True, False]]), batch=1)
    unmasked = made("x", [[1.0, 2.0]], batch=1)
    assert jax.tree.structure(plain) == jax.tree.structure(plain.copy())
    assert jax.tree.structure(plain) != jax.tree.structure(stepped)
    assert jax.tree.structure(masked) != jax.tree.structure(unmasked)
    other_axis = logdict(value, epoch={"x": np.array([0])})
    assert jax.tree.structure(stepped) != jax.tree.structure(other_axis)
    assert jax.tree.structure(unmasked) != jax.tree.structure(made("x", [[1.0, 2.0]]))


def test_lanes_in_shards_come_after_the_mesh_and_names_as_they_were_logged() -> None:
    def shard(xs: Any) -> Any:
        jax.vmap(lambda x: sawlog.log({"second": x, "first": x}))(xs)
        return xs

    mapped = jax.shard_map(shard, mesh=mesh(), in_specs=P("i"), out_specs=P("i"))
    _, logs = jax.eval_shape(sawlog.spool(mapped), jnp.arange(12.0))
    assert list(logs) == ["second", "first"]
    assert logs["first"].shape == (4, 3)


# --- Which logs, which arguments ------------------------------------------------------------------


def site_with(*tags: str) -> Site:
    trees = (jax.tree.structure(0), jax.tree.structure(0))
    return Site(("a", "b"), trees, (), tags, None, "here")


def test_one_of_several_tags_is_enough() -> None:
    assert selection(None, ["x", "y"]).keys(site_with("y", "z")) == ("a", "b")
    assert selection(["b", "c"], ["x", "y"]).keys(site_with("x")) == ("b",)
    assert selection(None, ["x", "y"]).keys(site_with("z")) == ()
    assert selection(None, []).keys(site_with("z")) == ()


def test_numbers_of_arguments_move_and_those_from_the_end_stay() -> None:
    options = {"static_argnums": (0, -1), "donate_argnums": (1, -2), "static_argnames": ("n",)}
    moved = {"static_argnums": (2, -1), "donate_argnums": (3, -2), "static_argnames": ("n",)}
    assert shifted(options, 2) == moved


def test_a_block_that_strips_inside_of_another() -> None:
    def is_on() -> bool:
        return bool(getattr(_marks._stripped, "on", False))

    with _marks.stripping():
        with _marks.stripping():
            assert is_on()
        assert is_on()
    assert not is_on()


def test_one_function_with_options_of_every_kind() -> None:
    """What is compiled for some options is not used for others."""

    def f(xs: Any) -> None:
        jax.lax.scan(lambda c, x: (c, sawlog.log({"y": -x, "x": x})), None, xs)

    xs, logger = jnp.arange(3.0), MemoryLogger()
    state = logger.init(0)
    for prefix, options in {
        "a/": {},
        "b/": {},
        "c/": {"interval": 2},
        "d/": {"reduce": "sum"},
        "e/": {"buffer": 2},
        "f/": {"buffer": 2, "interval": 2},
    }.items():
        logger.tap(f, state, argnames="x", prefix=prefix, **options)(xs)
    found = {name: values.tolist() for name, values in logger.runs["seed-0"].logs.items()}
    whole, second = [0.0, 1.0, 2.0], [0.0, 2.0]
    assert found == {
        "a/x": whole,
        "b/x": whole,
        "c/x": second,
        "d/x": [3.0],
        "e/x": whole,
        "f/x": second,
    }
    logger.tap(f, state, argnames="x", prefix="a/", interval=2)(xs)
    logger.tap(f, state, argnames="y", prefix="a/", interval=2)(xs)
    assert logger.runs["seed-0"].logs["a/x"].tolist() == whole + second
    assert logger.runs["seed-0"].logs["a/y"].tolist() == [0, -2]
    seen: list[Any] = []
    for options in ({"interval": 2}, {"reduce": "sum"}, {"prefix": "p/", "interval": 2}, {}):
        sawlog.tap(f, seen.append, argnames="x", **options)(xs)
    assert [{k: v.tolist() for k, v in logs.items()} for logs in seen] == [
        {"x": 0.0},
        {"x": 2.0},
        {"x": 3.0},
        {"p/x": 0.0},
        {"p/x": 2.0},
        {"x": 0.0},
        {"x": 1.0},
        {"x": 2.0},
    ]


# --- Keys and settings of runs --------------------------------------------------------------------


def test_runs_of_large_seeds_and_other_keys_have_names_of_their_own() -> None:
    assert Logger.name_of(2**32 + 5) == "key-00000001-00000005"
    assert key_data(2**64 - 1).tolist() == [2**32 - 1, 2**32 - 1]
    wide = jax.random.key(7, impl="rbg")
    assert (
        Logger.name_of(wide) == run_name([0, 7, 0, 7]) == "key-00000000-00000007-00000000-00000007"
    )
    names = {run_name([1, 0x23]), run_name([0x12, 3]), run_name([0, 0x123])}
    assert len(names) == 3


def test_settings_come_back_in_their_places() -> None:
    half = jnp.array([0.5, 2.0], jnp.bfloat16)
    config = {"z": None, "a": {"lr": half, "n": 3}, "m": (np.int8(4), "text", np.float32(0.25))}
    arrays, joined = split_config(config)
    assert [np.asarray(array).tolist() for array in arrays] == [[0.5, 2.0], 4, 0.25]
    other = [np.array([1.5, 2.5], half.dtype), np.int8(5), np.float32(0.75)]
    expected = {"z": None, "a": {"lr": [1.5, 2.5], "n": 3}, "m": [5, "text", 0.75]}
    assert joined(other) == expected
    assert type(joined(other)["a"]["lr"][0]) is float
