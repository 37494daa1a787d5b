"""Saving and loading: bit for bit, whatever the layout; several saves as one sum."""

from __future__ import annotations

import collections
import functools
import operator
import pathlib
import re
import tempfile
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import logdict, store
from sawlog.errors import (
    ArgumentError,
    DamagedStoreError,
    ForeignStoreError,
    LogMismatchError,
    LogValueError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
)
from sawlog.jax._saving.disk import LogSink
from sawlog.jax._saving.records import from_records, to_records
from sawlog.records import Entries, Records
from tests.thorough import examples

from .cases import CASES
from .saved import DTYPES, assert_same, kinds, logdicts

EXAMPLES = examples(15, 60)
FEWER = examples(8, 25)


def program(x: Any) -> Any:
    """Logs once, in a loop, in a branch that runs and in one that does not."""
    sawlog.log({"once": x, "tree": {"b": x, "a": (x, [2 * x])}, "key": jax.random.key(3)})

    def body(x: Any, i: Any) -> Any:
        sawlog.log({"x": x, "h": x.astype(jnp.bfloat16)}, step=i, twice=2 * i)
        lax.cond(x > 2, lambda: sawlog.log({"big": x}, step=i), lambda: None)
        lax.cond(
            x > 99, lambda: sawlog.log({"never": {"x": x, "k": jax.random.key(0)}}), lambda: None
        )
        return x + 1, None

    return lax.scan(body, x, jnp.arange(4))[0]


# -- one save --------------------------------------------------------------------------------------


@EXAMPLES
@given(logdicts())
def test_any_logdict_comes_back(logs: logdict) -> None:
    assert_same(from_records(to_records(logs)), logs)
    with tempfile.TemporaryDirectory() as folder:
        sawlog.save(f"{folder}/run", logs)
        assert_same(sawlog.load(f"{folder}/run"), logs)


def test_a_program(tmp_path: pathlib.Path) -> None:
    logs = sawlog.spool(program)(1.0)[1]
    assert list(logs) == ["once", "tree", "key", "x", "h", "big"]
    logs.save(tmp_path / "run")
    found = sawlog.load(tmp_path / "run")
    assert_same(found, logs)
    assert found["x"].tolist() == [1, 2, 3, 4]
    assert found.twice["x"].tolist() == [0, 2, 4, 6]
    assert found["big"].tolist() == [3, 4]
    assert found["never"]["x"].shape == (0,)
    assert jnp.array_equal(found["key"], jax.random.key(3))
    assert found["tree"]["a"][1][0] == 2


@pytest.mark.turns(2)
@pytest.mark.parametrize("name", list(CASES)[::12])
def test_programs_of_the_table(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]
    try:
        _, logs = sawlog.spool(case.fun, **case.options)(*case.args, **case.kwargs)
    except sawlog.SawlogError:
        pytest.skip("nothing to save: the row is about an error")
    logs.save(tmp_path / "run")
    assert_same(sawlog.load(tmp_path / "run"), logs)


WAYS = {
    "vmap of spool": lambda f: jax.vmap(sawlog.spool(f)),
    "spool of vmap": lambda f: sawlog.spool(jax.vmap(f)),
    "vmap of spool of vmap": lambda f: jax.vmap(sawlog.spool(jax.vmap(f))),
    "jit of vmap of spool": lambda f: jax.jit(jax.vmap(sawlog.spool(f))),
    "reduced": lambda f: jax.vmap(sawlog.spool(f, reduce={"x": "mean", "big": "last"})),
    "window": lambda f: jax.vmap(sawlog.spool(f, window=2)),
    "interval": lambda f: sawlog.spool(jax.vmap(f), interval=3),
}


@pytest.mark.parametrize("way", WAYS)
def test_lanes_that_differ(way: str, tmp_path: pathlib.Path) -> None:
    """Masks of ragged lanes, outer axes, batch axes."""
    x = jnp.array([[0.0, 1.5], [3.0, -9.0]])
    _, logs = WAYS[way](program)(x if way == "vmap of spool of vmap" else x[:, 0])
    if "reduce" not in way:
        assert logs.mask["big"].any()
        assert not logs.mask["big"].all()
    logs.save(tmp_path / "run")
    assert_same(sawlog.load(tmp_path / "run"), logs)


def test_dropped(tmp_path: pathlib.Path) -> None:
    def halve(x: Any) -> Any:
        def body(x: Any) -> Any:
            sawlog.log({"x": x})
            return x / 2

        return lax.while_loop(lambda x: x > 1, body, x)

    for number, fun in enumerate((sawlog.spool, lambda f, **o: jax.vmap(sawlog.spool(f, **o)))):
        x = 32.0 if number == 0 else jnp.array([32.0, 2.0, 1.0])
        _, logs = fun(halve, capacity=3)(x)
        path = tmp_path / str(number)
        logs.save(path)
        assert_same(sawlog.load(path), logs)
        logs.save(path, exists="append")
        assert_same(sawlog.load(path), logs + logs)
        want = 4 if number == 0 else [4, 0, 0]
        assert sawlog.load(path).dropped["x"].tolist() == want


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_of_a_dtype(dtype: Any, tmp_path: pathlib.Path) -> None:
    """NaN payloads and minus zero among them; 64 bits though JAX has them turned off."""
    assert not jax.config.jax_enable_x64
    data = np.arange(256 * 16, dtype=np.uint8) if dtype != "bool" else np.array([0, 1], np.uint8)
    logs = logdict({"x": data.view(dtype)})
    logs.save(tmp_path / "run")
    assert_same(sawlog.load(tmp_path / "run"), logs)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_prng_keys(impl: str, tmp_path: pathlib.Path) -> None:
    key = jax.random.key(7, impl=impl)
    logs = logdict({"one": key, "many": jax.random.split(key, 3), "none": key[None][:0]})
    logs.save(tmp_path / "run")
    found = sawlog.load(tmp_path / "run")
    assert_same(found, logs)
    assert jax.random.key_impl(found["one"]) == impl
    assert jax.random.uniform(found["one"]) == jax.random.uniform(key)


def test_small_and_empty_ones(tmp_path: pathlib.Path) -> None:
    for number, logs in enumerate(
        (
            logdict(),
            logdict({"none": np.zeros((0, 2))}, step={"none": np.zeros(0, int)}),
            logdict({"scalar": 1.5, "int": 3, "flag": True, "text": "abc"}),
            logdict({"nothing": None, "empty": {}, "list": [None, ()]}),
        )
    ):
        sawlog.save(tmp_path / str(number), logs)
        found = sawlog.load(tmp_path / str(number))
        assert list(found) == list(logs)
        assert found._layout == logs._layout
        assert jax.tree.structure(found) == jax.tree.structure(logs)
        for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(logs), strict=True):
            np.testing.assert_array_equal(one, two)


def test_indexed_logs(tmp_path: pathlib.Path) -> None:
    """A user may index axes of a whole logdict away; its slots still know of them."""
    _, logs = jax.vmap(sawlog.spool(program))(jnp.arange(3.0))
    for number, index in enumerate((0, (0, 1), np.s_[:, 0])):
        indexed = jax.tree.map(lambda x: x[index], logs.filter(lambda k, v: k in "xh"))  # noqa: B023
        indexed.save(tmp_path / str(number))
        found = sawlog.load(tmp_path / str(number))
        assert_same(found, indexed.to_numpy())
        again = [jax.tree.map(lambda *x: np.stack(x), one, one) for one in (found, indexed)]
        assert repr(again[0].entries()) == repr(again[1].to_numpy().entries())


def test_a_dict_keeps_its_order(tmp_path: pathlib.Path) -> None:
    sawlog.save(tmp_path / "run", {"t": {"b": np.zeros(2), "a": np.ones(2)}})
    assert list(sawlog.load(tmp_path / "run")["t"]) == ["b", "a"]


def test_records_are_readable_without_jax(tmp_path: pathlib.Path) -> None:
    """One row an entry, the entry axis in front; a plain name for a plain array, and its steps."""
    _, logs = jax.vmap(sawlog.spool(program))(jnp.array([0.0, 5.0]))
    logs.save(tmp_path / "run", meta={"mine": 1})
    reader = store.open(tmp_path / "run")
    assert reader.meta == {"mine": 1}
    assert {"once", "tree['a'][1][0]", "tree['b']", "x", "big"} <= set(reader.names)
    assert reader.entries("x").values.tolist() == [[0, 5], [1, 6], [2, 7], [3, 8]]
    assert reader.entries("x").steps["step"].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert reader.entries("once").values.tolist() == [[0, 5]]
    assert reader.entries("big").mask[:, 0].tolist() == [False, False, False, True]
    assert reader.entries("tree['b']").values.tolist() == [[0, 5]]


# -- several saves ---------------------------------------------------------------------------------


@FEWER
@given(st.data())
def test_several_saves_are_one_sum(data: st.DataObject) -> None:
    """Also when the store cuts them into small segments, and after it has put these together."""
    of = data.draw(st.dictionaries(st.sampled_from(("a", "b", "c d")), kinds(), min_size=1))
    chosen = st.sets(st.sampled_from(sorted(of)))
    saves = [
        data.draw(logdicts({key: of[key] for key in sorted(data.draw(chosen))}))
        for _ in range(data.draw(st.integers(1, 4)))
    ]
    total = functools.reduce(operator.add, saves)
    size = data.draw(st.sampled_from((1, 40, 1 << 20)))
    with tempfile.TemporaryDirectory() as folder:
        for logs in saves:
            sink = LogSink(folder, segment_bytes=size, interval=None)
            sink.write(to_records(logs))
            sink.close()
        assert_same(sawlog.load(folder), _on_host(total))
        store.compact(folder)
        assert_same(sawlog.load(folder), _on_host(total))


def _on_host(logs: logdict) -> logdict:
    return logdict._of(logs.to_numpy()._raw_parts(), logs._layout.empty)


def test_appending(tmp_path: pathlib.Path) -> None:
    """Values that were logged once become entries; what was missing before is there now."""
    first, second = sawlog.spool(program)(1.0)[1], sawlog.spool(program)(98.0)[1]
    first.save(tmp_path / "run")
    second.save(tmp_path / "run", exists="append")
    found = sawlog.load(tmp_path / "run")
    assert_same(found, first + second)
    assert found["once"].tolist() == [1, 98]
    assert list(found)[-1] == "never"
    second.save(tmp_path / "run", exists="replace")
    assert_same(sawlog.load(tmp_path / "run"), second)


def test_what_others_wrote(tmp_path: pathlib.Path) -> None:
    with store.create(tmp_path / "run") as writer:
        writer.log({"loss": 2.0}, step=0)
        writer.log({"loss": 1.0}, step=1)
        writer.append([1, 2], {"rows": np.zeros((2, 3))})
    found = sawlog.load(tmp_path / "run")
    assert list(found) == ["loss"]
    assert found["loss"].tolist() == [2, 1]
    assert found.step["loss"].tolist() == [0, 1]


def test_a_name_that_was_declared_and_never_published_is_not_there(tmp_path: pathlib.Path) -> None:
    writer = store.create(tmp_path / "run", interval=None)
    writer.write(to_records(logdict({"x": np.arange(3)})))
    writer.abort()
    assert list(sawlog.load(tmp_path / "run")) == []


# -- errors ----------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, jax.grad])
def test_traced_logs_are_refused(around: Any, tmp_path: pathlib.Path) -> None:
    def f(x: Any) -> Any:
        y, logs = sawlog.spool(program)(x)
        logs.save(tmp_path / "run")
        return y

    with pytest.raises(ArgumentError, match=r"(?s)traced.*outside of jit.*SaveLogger"):
        around(f)(jnp.arange(2.0) if around is jax.vmap else 1.0)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Pair(np.zeros(2), np.zeros(2)), r"'t' is a Pair.*_asdict"),
        ({"a": [Pair(1, 2)]}, r"'t'\['a'\]\[0\] is a Pair"),
        (collections.OrderedDict(a=np.zeros(2)), "OrderedDict"),
        (logdict({"a": np.zeros(2)}), "logdict"),
        ({(1, 2): np.zeros(2)}, r"key \(1, 2\)"),
        (object(), r"[Tt]he value of 't' is of type object"),
        ({"a": np.array([None, 1])}, r"the value of .t\['a'\]"),
    ],
)
def test_values_that_cannot_be_saved(value: Any, text: str, tmp_path: pathlib.Path) -> None:
    sawlog.save(tmp_path / "run", {"t": np.zeros(1)})
    with pytest.raises(LogValueError, match=re.compile(text, re.IGNORECASE)):
        sawlog.save(tmp_path / "run", {"t": value}, exists="replace")
    assert sawlog.load(tmp_path / "run")["t"].tolist() == [0], "nothing was replaced"


def test_keys_that_cannot_be_saved() -> None:
    with pytest.raises(ArgumentError, match="strings; got 3"):
        to_records({3: np.zeros(2)})
    with pytest.raises(LogMismatchError, match=r"Two keys.*under the name \"t\['a'\]\""):
        to_records({"t": {"a": np.zeros(2)}, "t['a']": np.zeros(2)})
    with pytest.raises(
        LogMismatchError, match=r"'t' have different numbers of entries: 2 .*, 3 in"
    ):
        to_records({"t": [np.zeros(2), np.zeros(3)]})


@pytest.mark.parametrize(
    ("second", "error", "text"),
    [
        ({"t": [np.zeros(2)]}, LogMismatchError, r"structure is PyTreeDef\(\{'a': \*\}\).*\[\*\]"),
        ({"t": np.zeros(2)}, LogMismatchError, "structure"),
        ({"t['a']": np.zeros(2)}, LogMismatchError, r"key of the series"),
        ({"t": {"a": np.zeros(2, np.float32)}}, SchemaError, "float64.*float32"),
        ({"t": {"a": np.zeros((2, 2))}}, SchemaError, r"\[2\]"),
        (
            {"t": {"a": jax.random.split(jax.random.key(0))}},
            LogMismatchError,
            "PRNG keys.* is None",
        ),
    ],
)
def test_saves_that_do_not_go_together(
    second: Any, error: Any, text: str, tmp_path: pathlib.Path
) -> None:
    """Refused when saving, so that what is there can still be loaded."""
    first = logdict({"t": {"a": np.arange(2.0)}})
    first.save(tmp_path / "run")
    with pytest.raises(error, match=text):
        sawlog.save(tmp_path / "run", second, exists="append")
    assert_same(sawlog.load(tmp_path / "run"), first)


def test_saves_that_do_not_go_together_and_were_forced(tmp_path: pathlib.Path) -> None:
    with store.create(tmp_path / "run") as writer:
        writer.write(to_records({"t": {"a": np.zeros(2)}}))
        writer.write(to_records({"t": [np.zeros(2)]}))
    with pytest.raises(LogMismatchError, match="'t' cannot be concatenated: the structure"):
        sawlog.load(tmp_path / "run")


def test_a_part_that_is_missing() -> None:
    records = dict(to_records({"t": {"a": np.zeros(2), "b": np.zeros(2)}}))
    short = Records(records | {"t['b']": Entries(np.zeros(1), attrs=records["t['b']"].attrs)})
    with pytest.raises(DamagedStoreError, match=r"2 of .*1 of .*stopped in between"):
        from_records(short)
    del records["t['b']"]
    with pytest.raises(DamagedStoreError, match="Part 1 of the value of 't' is missing"):
        from_records(Records(records))


def test_exists(tmp_path: pathlib.Path) -> None:
    logs = logdict({"x": np.arange(2)})
    logs.save(tmp_path / "run", meta={"lr": 1})
    with pytest.raises(StoreExistsError, match="exists='append'"):
        logs.save(tmp_path / "run")
    with pytest.raises(StoreExistsError, match=r"started with \{'lr': 1\}.*\{'lr': 2\}"):
        logs.save(tmp_path / "run", exists="append", meta={"lr": 2})
    with pytest.raises(sawlog.SawlogError, match="exists"):
        logs.save(tmp_path / "run", exists="ask")
    logs.save(tmp_path / "run", exists="append")
    assert sawlog.load(tmp_path / "run")["x"].tolist() == [0, 1, 0, 1]


def test_loading_what_is_no_store(tmp_path: pathlib.Path) -> None:
    with pytest.raises(StoreNotFoundError):
        sawlog.load(tmp_path / "nowhere")
    for name in ("seed-0", "seed-1"):
        sawlog.save(tmp_path / name, {"x": np.zeros(1)})
    with pytest.raises(ForeignStoreError, match=r"2 runs: seed-0, seed-1.*load\(.*seed-0'"):
        sawlog.load(tmp_path)
    with store.create(tmp_path / "rows") as writer:
        writer.append([1], {"g": np.zeros((1, 2))})
    with pytest.raises(ArgumentError, match="rows by example id"):
        sawlog.load(tmp_path / "rows")


def test_a_step_axis_may_be_called_save(tmp_path) -> None:
    logs = sawlog.spool(lambda x: sawlog.log({"x": x}, save=1, a=2) and None)(1.0)[1]
    logs.save(tmp_path / "logs")
    loaded = sawlog.load(tmp_path / "logs")
    assert {name: int(keys["x"]) for name, keys in loaded.steps.items()} == {"save": 1, "a": 2}
    assert list(loaded.steps) == ["save", "a"]  # in the order they were written
