"""`logdict` against an oracle: plain Python lists of entries and steps, key by key."""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import logdict
from tests.jax.same import gaps
from tests.thorough import examples, pairs

EXAMPLES = examples(6, 20)
FEWER = examples(3, 8)
MODES = ("mean", "sum", "min", "max", "first", "last", "replace", "count", "std", "var", "append")
OTHERS_FIRST = (*MODES[1:], MODES[0])
"""For tests by turns: the modes whose turn it is not in the order of ``MODES``."""

# -- the oracle ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Column:
    """One key: a list of entries (pytrees of numpy arrays), and a list for each step axis."""

    entries: list[Any]
    steps: dict[str, list[int]]

    def at(self, indices: Any) -> Column:
        """Some of the entries."""
        return Column(
            [self.entries[i] for i in indices],
            {name: [steps[i] for i in indices] for name, steps in self.steps.items()},
        )

    def __getitem__(self, index: slice) -> Column:
        return Column(self.entries[index], {name: s[index] for name, s in self.steps.items()})

    def __add__(self, other: Column) -> Column:
        steps = {name: self.steps[name] + other.steps[name] for name in self.steps}
        return Column(self.entries + other.entries, steps)


Table = dict[str, Column]


def stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)


def oracle_reduce(array: np.ndarray, mode: str) -> np.ndarray:
    """Reduce the first axis with plain Python."""
    rows = list(array)
    if mode == "count":
        return np.full(array.shape[1:], len(rows))
    if mode in ("first", "last", "replace"):
        return rows[0] if mode == "first" else rows[-1]
    if mode in ("min", "max"):
        fold = np.minimum if mode == "min" else np.maximum
        out = rows[0]
        for row in rows[1:]:
            out = fold(out, row)
        return out
    total = sum(row.astype(np.float64) for row in rows)
    if mode == "sum":
        return total
    mean = total / len(rows)
    if mode == "mean":
        return mean
    var = sum((row.astype(np.float64) - mean) ** 2 for row in rows) / len(rows)
    return var if mode == "var" else np.sqrt(var)


def oracle_step(steps: list[int], mode: str) -> Any:
    return {"first": lambda: steps[0], "mean": lambda: np.mean(steps)}.get(
        mode, lambda: steps[-1]
    )()


KINDS = ("f0", "i0", "b0", "f2", "i22", "tree")


def entry(kind: str, number: int) -> Any:
    """An entry of a kind, told apart by a number."""
    if kind == "f0":
        return np.float32(number / 4)
    if kind == "i0":
        return np.int32(number)
    if kind == "b0":
        return np.bool_(number % 2)
    if kind == "f2":
        return np.array([number / 2, -number], np.float32)
    if kind == "i22":
        return np.arange(4, dtype=np.int32).reshape(2, 2) * number
    return {"p": np.array([number, number / 2], np.float32), "q": (np.int32(-number),)}


@st.composite
def columns(draw: Any, like: tuple[str, tuple[str, ...]] | None = None) -> Column:
    kind = like[0] if like else draw(st.sampled_from(KINDS))
    names = like[1] if like else draw(st.sampled_from([(), ("step",), ("episode", "step")]))
    count = draw(st.integers(1, 4))
    numbers = st.lists(st.integers(-9, 9), min_size=count, max_size=count)
    return Column([entry(kind, n) for n in draw(numbers)], {name: draw(numbers) for name in names})


KEYS = ("a", "b/c", "d")


@st.composite
def tables(draw: Any, types: dict[str, Any] | None = None) -> Table:
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, min_size=1, max_size=3))
    return {key: draw(columns(types[key] if types else None)) for key in keys}


@st.composite
def fitting_tables(draw: Any, count: int) -> list[Table]:
    """Tables whose keys, where they share them, have the same type and step axes."""
    steps = st.sampled_from([(), ("step",), ("episode", "step")])
    types = {key: (draw(st.sampled_from(KINDS)), draw(steps)) for key in KEYS}
    return [draw(tables(types)) for _ in range(count)]


def to_logs(table: Table, device: bool = False) -> logdict:
    """The logs of a table, always with the entry axis."""
    put = jnp.asarray if device else np.asarray
    steps: dict[str, dict[str, Any]] = {}
    for key, column in table.items():
        for name, values in column.steps.items():
            steps.setdefault(name, {})[key] = put(np.array(values, np.int32))
    data = {key: jax.tree.map(put, stacked(column.entries)) for key, column in table.items()}
    return logdict(data, **steps)


def same(got: Any, want: Any) -> None:
    """Equal structure, shapes and values; and the same kind of dtype."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert g.shape == w.shape
        np.testing.assert_allclose(g.astype(np.float64), w.astype(np.float64), 1e-5, 1e-6)


def agrees(logs: logdict, table: Table) -> None:
    """The logs hold exactly the entries of the table, in their natural form."""
    assert set(logs) == set(table)
    assert gaps(logs) == set()
    found = logs.entries()
    assert set(found) == set(table)
    for key, column in table.items():
        same(found[key], stacked(column.entries))
    names = {name for column in table.values() for name in column.steps}
    assert set(logs.steps) == names
    for name in names:
        have = {key: c.steps[name] for key, c in table.items() if name in c.steps}
        assert set(getattr(logs, name)) == set(have)
        for key, steps in have.items():
            got = np.atleast_1d(np.asarray(getattr(logs, name)[key]))
            np.testing.assert_array_equal(got, steps)


def logging(table: Table) -> Any:
    """A program that logs a table, entry by entry."""

    def program() -> None:
        for i in range(max(len(column.entries) for column in table.values())):
            for key, column in table.items():
                if i < len(column.entries):
                    steps = {name: values[i] for name, values in column.steps.items()}
                    sawlog.log({key: column.entries[i]}, **steps)

    return program


# -- reading ---------------------------------------------------------------------------------------


@EXAMPLES
@given(tables(), st.booleans())
def test_reading(table: Table, device: bool) -> None:
    logs = to_logs(table, device)
    agrees(logs, table)
    assert list(logs) == list(table) == list(logs.keys())
    assert len(logs) == len(table)
    plain = logs.asdict()
    assert type(plain) is dict
    assert list(plain) == list(table)
    for key in table:
        assert plain[key] is logs[key] is logs.get(key)


@FEWER
@given(tables())
def test_spooled_logs_agree_with_the_oracle(table: Table) -> None:
    _, logs = sawlog.spool(logging(table))()
    agrees(logs, table)
    for key, column in table.items():
        want = column.entries[0] if len(column.entries) == 1 else stacked(column.entries)
        same(logs[key], want)
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(logs[key])]
        assert dtypes == [leaf.dtype for leaf in jax.tree.leaves(want)]


def test_scalars_are_one_entry() -> None:
    logs = logdict({"a": 1.5, "b": jnp.arange(3)}, step={"a": 4})
    same(logs["a"], 1.5)
    same(logs.entries()["a"], np.array([1.5]))
    same(logs.entries()["b"], np.arange(3))
    agrees(logs + logs, {
        "a": Column([np.float32(1.5)] * 2, {"step": [4, 4]}),
        "b": Column([*map(np.int32, (0, 1, 2, 0, 1, 2))], {}),
    })  # fmt: skip


def test_misaligned_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="step"):
        logdict({"a": np.arange(3)}, step={"a": np.arange(2)})


def test_missing_keys() -> None:
    logs = logdict({"a": jnp.arange(3)})
    with pytest.raises(KeyError, match="b"):
        logs["b"]
    assert "b" not in logs
    assert logs.get("b") is None
    assert logs.get("b", 7) == 7


def test_equality_is_that_of_a_dict() -> None:
    assert logdict({"a": 1}) == {"a": 1}
    assert logdict({"a": 1}) != {"a": 2}
    assert logdict({"a": 1}) == logdict({"a": 1})
    assert isinstance(logdict(), dict)


# -- operations ------------------------------------------------------------------------------------


def oracle_add(one: Table, two: Table) -> Table:
    both = {key: one[key] + two[key] for key in one if key in two}
    return {**one, **{key: c for key, c in two.items() if key not in one}, **both}


@EXAMPLES
@given(fitting_tables(2), st.booleans(), st.booleans())
def test_add_is_concatenation(pair: list[Table], left: bool, right: bool) -> None:
    one, two = pair
    first, second = to_logs(one, left), to_logs(two, right)
    agrees(first + second, oracle_add(one, two))
    agrees(first, one)
    agrees(second, two)


@EXAMPLES
@given(fitting_tables(3))
def test_add_is_associative(three: list[Table]) -> None:
    a, b, c = map(to_logs, three)
    left, right = (a + b) + c, a + (b + c)
    agrees(left, oracle_add(oracle_add(*three[:2]), three[2]))
    assert list(left) == list(right)
    for key in left:
        jax.tree.map(np.testing.assert_array_equal, left[key], right[key])
    assert jax.tree.structure(left) == jax.tree.structure(right)


@FEWER
@given(fitting_tables(2))
def test_add_is_running_one_after_the_other(pair: list[Table]) -> None:
    first, second = map(logging, pair)

    def both() -> None:
        first()
        second()

    want = sawlog.spool(both)()[1]
    got = sawlog.spool(first)()[1] + sawlog.spool(second)()[1]
    agrees(want, oracle_add(*pair))
    agrees(got, oracle_add(*pair))
    assert list(got) == list(want)
    for key in want:
        jax.tree.map(np.testing.assert_array_equal, got[key], want[key])


def test_add_keeps_dtypes() -> None:
    key = jax.random.key(1)
    logs = logdict({"k": key[None], "h": jnp.ones((2, 3), jnp.bfloat16), "b": jnp.array([True])})
    total = logs + logs
    assert {k: (v.dtype, v.shape) for k, v in total.items()} == {
        "k": (key.dtype, (2,)),
        "h": (jnp.bfloat16, (4, 3)),
        "b": (jnp.bool_, (2,)),
    }


def test_add_refuses_other_things() -> None:
    with pytest.raises(TypeError):
        logdict({"a": jnp.arange(3)}) + {"a": jnp.arange(3)}


@EXAMPLES
@given(tables(), tables())
def test_or_takes_the_right(one: Table, two: Table) -> None:
    first, second = to_logs(one), to_logs(two)
    agrees(first | second, {**one, **two})
    agrees(first, one)
    agrees(second, two)


def test_or_with_a_plain_dict() -> None:
    logs = logdict({"a": np.arange(3)}, step={"a": np.arange(3)}) | {"b": np.zeros(2)}
    assert set(logs) == {"a", "b"}
    assert set(logs.step) == {"a"}
    assert isinstance(logs, logdict)
    with pytest.raises(TypeError):
        logs | 3


BOUNDS = st.none() | st.integers(-7, 7)
SLICES = st.builds(slice, BOUNDS, BOUNDS, st.none() | st.integers(-3, 3).filter(bool))


@EXAMPLES
@given(tables(), SLICES, st.booleans())
def test_slice_is_list_slicing(table: Table, index: slice, device: bool) -> None:
    got = to_logs(table, device).slice[index]
    want = {key: column[index] for key, column in table.items()}
    full = {key: column for key, column in want.items() if column.entries}
    assert set(got) == set(table)
    agrees(got.filter(lambda key, value: key in full), full)
    for key in set(table) - set(full):
        like = jax.tree.leaves(stacked(table[key].entries))
        leaves = jax.tree.leaves(got[key])
        assert [x.shape for x in leaves] == [(0, *x.shape[1:]) for x in like]
        assert [x.dtype for x in leaves] == [x.dtype for x in like]


@FEWER
@given(tables(), SLICES)
def test_slice_of_spooled_logs(table: Table, index: slice) -> None:
    """Also where a single entry has no axis."""
    got = sawlog.spool(logging(table))()[1].slice[index].entries()
    assert set(got) == set(table)
    for key, column in table.items():
        same(got[key], jax.tree.map(lambda x: x[index], stacked(column.entries)))


@EXAMPLES
@given(tables(), st.sets(st.sampled_from(KEYS)))
def test_filter(table: Table, keep: set[str]) -> None:
    logs, seen = to_logs(table), {}

    def predicate(key: str, value: Any) -> bool:
        seen[key] = value
        return key in keep

    agrees(logs.filter(predicate), {key: c for key, c in table.items() if key in keep})
    assert seen.keys() == table.keys()
    assert all(seen[key] is logs[key] for key in table)


@EXAMPLES
@given(tables(), st.sampled_from(["p/", "", "x"]))
def test_prefix(table: Table, prefix: str) -> None:
    logs = to_logs(table)
    agrees(logs.prefix(prefix), {prefix + key: column for key, column in table.items()})
    agrees(logs, table)


# -- reductions ------------------------------------------------------------------------------------


def agrees_reduced(logs: logdict, table: Table, modes: dict[str, str]) -> None:
    assert set(logs) == set(table)
    for key, column in table.items():
        mode, full = modes.get(key, "append"), stacked(column.entries)
        if mode == "append":
            same(logs.entries()[key], full)
            continue
        same(logs[key], jax.tree.map(lambda x, mode=mode: oracle_reduce(x, mode), full))
        for name, steps in column.steps.items():
            same(getattr(logs, name)[key], oracle_step(steps, mode))
        for got, before in zip(jax.tree.leaves(logs[key]), jax.tree.leaves(full), strict=True):
            if mode in ("first", "last", "replace", "min", "max"):
                assert got.dtype == before.dtype
            elif mode == "count" or (mode == "sum" and before.dtype.kind in "ib"):
                assert got.dtype.kind == "i"
            else:
                assert got.dtype.kind == "f"


@pytest.mark.turns(3)
@pytest.mark.parametrize("mode", MODES)
@FEWER
@given(table=tables(), device=st.booleans())
def test_reduce(mode: str, table: Table, device: bool) -> None:
    logs = to_logs(table, device)
    agrees_reduced(logs.reduce(mode), table, dict.fromkeys(table, mode))
    agrees(logs, table)


def test_reduce_by_default_is_the_mean() -> None:
    same(logdict({"a": jnp.array([1, 2])}).reduce()["a"], np.float32(1.5))


@EXAMPLES
@given(tables(), st.dictionaries(st.sampled_from(KEYS), st.sampled_from(MODES)))
def test_reduce_by_key(table: Table, modes: dict[str, str]) -> None:
    agrees_reduced(to_logs(table).reduce(modes), table, modes)


@pytest.mark.turns(3)
@pytest.mark.parametrize("mode", [m for m in MODES if m != "append"])
def test_reduce_leaves_one_entry_without_axis(mode: str) -> None:
    """A single entry as it was logged: the axes of its own are not entries."""

    def f(x: Any) -> None:
        sawlog.log({"x": x}, step=5)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    logs = sawlog.spool(f)(x)[1].reduce(mode)
    same(logs["x"], oracle_reduce(x[None], mode))
    same(logs.step["x"], 5)


@FEWER
@given(tables(), st.sampled_from(MODES), st.sampled_from([1, 2, 3]))
def test_options_of_spool_are_the_methods(table: Table, mode: str, interval: int) -> None:
    program = logging(table)
    got = sawlog.spool(program, reduce=mode, prefix="p/")()[1]
    agrees_reduced(
        got,
        {"p/" + key: column for key, column in table.items()},
        {"p/" + key: mode for key in table},
    )
    kept = {key: column[::interval] for key, column in table.items()}
    agrees(sawlog.spool(program, interval=interval)()[1], kept)


@pytest.mark.turns
@pytest.mark.parametrize("mode", OTHERS_FIRST)
def test_reduce_prng_keys_and_bf16(mode: str) -> None:
    """Keys can be picked and counted, but not added up."""
    keys = jax.random.split(jax.random.key(0), 3)
    half = jnp.array([1.5, 2.5, 0.5], jnp.bfloat16)
    logs = logdict({"h": half})
    for some in (logs, logs.to_numpy()):
        want = half if mode == "append" else oracle_reduce(np.asarray(half, np.float32), mode)
        np.testing.assert_allclose(
            np.asarray(some.reduce(mode)["h"], np.float32), np.asarray(want, np.float32), 1e-2
        )
    logs = logdict({"k": keys})
    if mode in ("first", "last", "replace"):
        want = keys[0 if mode == "first" else -1]
        assert jnp.array_equal(logs.reduce(mode)["k"], want)
    elif mode == "count":
        assert logs.reduce(mode)["k"] == 3
    elif mode == "append":
        assert jnp.array_equal(logs.reduce(mode)["k"], keys)
    else:
        with pytest.raises(TypeError):
            logs.reduce(mode)


def test_reduce_no_entries() -> None:
    logs = sawlog.spool(lambda xs: lax.map(lambda x: sawlog.log({"x": x}), xs))(np.zeros((0, 2)))[1]
    same(logs["x"], np.zeros((0, 2)))
    same(logs.reduce("sum")["x"], np.zeros(2))
    same(logs.reduce("count")["x"], np.zeros(2))


# -- the host --------------------------------------------------------------------------------------


def test_to_numpy() -> None:
    key = jax.random.key(3)

    def f(x: Any, key: Any) -> None:
        for i in range(2):
            sawlog.log({"f": x, "h": x.astype(jnp.bfloat16), "k": key, "t": (x, [i])}, step=i)

    logs = sawlog.spool(f)(jnp.arange(3.0), key)[1]
    host = logs.to_numpy()
    assert type(host) is logdict
    assert set(host) == {"f", "h", "k", "t"}
    leaves = [host["f"], host["h"], *jax.tree.leaves(host["t"]), *host.step.values()]
    assert len(leaves) == 8
    assert all(type(leaf) is np.ndarray for leaf in leaves)
    assert host["h"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(host["h"].astype(np.float32), [[0, 1, 2]] * 2)
    assert jnp.array_equal(host["k"], jnp.stack([key, key]))
    same(host["t"], (np.array([[0.0, 1, 2]] * 2), [np.array([0, 1])]))
    same(host.step["k"], np.array([0, 1]))
    assert isinstance(logs["f"], jax.Array)


@EXAMPLES
@given(tables())
def test_to_numpy_keeps_everything(table: Table) -> None:
    host = to_logs(table, device=True).to_numpy()
    agrees(host, table)
    leaves = jax.tree.leaves(host)
    assert leaves
    assert all(isinstance(leaf, np.ndarray) for leaf in leaves)


@EXAMPLES
@given(tables(), st.booleans())
def test_repr_names_everything(table: Table, device: bool) -> None:
    text = repr(to_logs(table, device))
    lines = text.splitlines()
    assert len(lines) == 1 + len(table)
    for line, (key, column) in zip(lines[1:], table.items(), strict=True):
        assert line.split()[0] == key
        for name in column.steps:
            assert name in line.split()


def test_repr_is_exact() -> None:
    logs = logdict({"loss": np.array([3.0, 2.0], np.float32)}, step={"loss": np.arange(2)})
    assert repr(logs) == "logdict:\n  loss  float32[2]  [3., 2.]  step [0, 1]"
    assert repr(logdict()) == "logdict: empty"


def test_repr_of_keys_and_long_arrays_has_one_line_a_key() -> None:
    logs = logdict({"k": jax.random.split(jax.random.key(0), 3), "x": jnp.zeros((50, 50))})
    lines = repr(logs).splitlines()
    assert [line.split()[0] for line in lines] == ["logdict:", "k", "x"]
    assert max(map(len, lines)) < 400


def test_repr_while_tracing() -> None:
    texts = []

    def f(x: Any) -> Any:
        def inner(x: Any) -> None:
            sawlog.log({"x": x, "t": {"u": x}}, step=1)
            lax.cond(x > 0, lambda: sawlog.log({"m": x}), lambda: None)

        logs = sawlog.spool(inner)(x)[1]
        texts.append(repr(logs))
        return logs

    jax.jit(f)(1.0)
    assert len(texts) == 1
    texts.append(repr(jax.eval_shape(f, 1.0)))
    logs = jax.jit(f)(1.0)
    for filler in (None, object(), 0):
        texts.append(repr(jax.tree.map(lambda leaf, filler=filler: filler, logs)))
    for text in texts:
        heads = [line.split()[0] for line in text.splitlines()]
        assert heads == ["logdict:", "x", "t", "m"]
        assert "step" in text
    assert all("traced" in text and "missing" in text for text in texts[:2])


# -- changes in place ------------------------------------------------------------------------------

NEW = Column([np.float32(8), np.float32(9)], {})
OPERATIONS = ("del", "pop", "pop default", "set", "update", "update logs", "|=", "setdefault")


def change(logs: logdict, table: Table, operation: str, key: str, other: Table) -> None:
    """Do the same to the logs and to the oracle."""
    present = key in table
    if operation == "del":
        if not present:
            with pytest.raises(KeyError):
                del logs[key]
            return
        del logs[key]
        del table[key]
    elif operation == "pop":
        if not present:
            with pytest.raises(KeyError):
                logs.pop(key)
            return
        same(logs.pop(key), stacked(table.pop(key).entries))
    elif operation == "pop default":
        got = logs.pop(key, None)
        column = table.pop(key, None)
        assert (got is None) == (column is None)
    elif operation == "set":
        logs[key] = stacked(NEW.entries)
        table[key] = NEW
    elif operation == "update":
        logs.update({key: stacked(NEW.entries)})
        table[key] = NEW
    elif operation == "update logs":
        logs.update(to_logs(other))
        table.update(other)
    elif operation == "|=":
        logs |= to_logs(other)
        table |= other
    else:
        got = logs.setdefault(key, stacked(NEW.entries))
        same(got, stacked(table.setdefault(key, NEW).entries))


@EXAMPLES
@given(
    tables(),
    tables(),
    st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(KEYS)), min_size=1, max_size=5),
    st.booleans(),
)
def test_changes_in_place(table: Table, other: Table, operations: Any, copied: bool) -> None:
    original = to_logs(table)
    logs, now = (original.copy() if copied else to_logs(table)), dict(table)
    for operation, key in operations:
        change(logs, now, operation, key, other)
        agrees(logs, now)
    agrees(original, table)
    agrees(logs + logs, {key: column + column for key, column in now.items()})
    agrees(jax.tree.map(lambda x: x, logs), now)


def test_setting_a_key_keeps_its_place() -> None:
    """As in any dict."""
    logs = logdict({"a": np.zeros(2), "b": np.zeros(2)}, step={"a": np.arange(2)})
    logs["a"] = np.ones(3)
    assert list(logs) == ["a", "b"]
    assert logs.steps == {}


def test_clear_and_popitem() -> None:
    logs = logdict({"a": np.zeros(2), "b": np.ones(2)}, step={"a": np.arange(2), "b": np.arange(2)})
    key, value = logs.popitem()
    assert key == "b"
    same(value, np.ones(2))
    assert set(logs) == set(logs.step) == {"a"}
    logs.clear()
    assert len(logs) == 0
    assert logs.steps == {}
    with pytest.raises(KeyError):
        logs.popitem()


# -- round trips -----------------------------------------------------------------------------------


@EXAMPLES
@given(tables(), st.booleans())
def test_round_trips(table: Table, device: bool) -> None:
    logs = to_logs(table, device)
    leaves, tree = jax.tree.flatten(logs)
    trips = {
        "flatten": jax.tree.unflatten(tree, leaves),
        "map": jax.tree.map(lambda x: x, logs),
        "copy": copy.copy(logs),
        "deepcopy": copy.deepcopy(logs),
        "pickle": pickle.loads(pickle.dumps(logs)),
        "dict.copy": logs.copy(),
        "device": jax.device_get(jax.device_put(logs)),
    }
    for back in trips.values():
        assert type(back) is logdict
        agrees(back, table)
        assert list(back) == list(table)
        assert jax.tree.structure(back) == tree
        agrees(back + logs, {key: column + column for key, column in table.items()})


def test_deepcopy_is_deep_and_copy_is_not() -> None:
    logs = logdict({"a": np.zeros(2)}, step={"a": np.arange(2)})
    deep, flat = copy.deepcopy(logs), copy.copy(logs)
    logs["a"][0] = 1
    logs.step["a"][0] = 5
    same(deep["a"], np.zeros(2))
    same(deep.step["a"], np.arange(2))
    assert flat["a"] is logs["a"]
    assert flat.step["a"] is logs.step["a"]
    del flat["a"]
    assert "a" in logs


def test_paths_name_keys_and_steps() -> None:
    logs = logdict({"a": np.zeros(2)}, step={"a": np.arange(2)})
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(logs)]
    assert paths == ["['a']", "['a@step']"]


def test_structure_ignores_values_only() -> None:
    def tree(**steps: Any) -> Any:
        return jax.tree.structure(logdict({"a": np.zeros(2)}, **steps))

    assert tree() == tree()
    assert hash(tree()) == hash(tree())
    assert tree() != tree(step={"a": np.arange(2)})
    assert tree(step={"a": np.arange(2)}) != tree(episode={"a": np.arange(2)})


def sometimes(xs: Any, on: Any) -> Any:
    """A loop that logs where `on` says so, and always under another name."""

    def body(total: Any, inputs: Any) -> Any:
        i, x, o = inputs
        total = total + x
        value = {"s": total, "v": jnp.stack([x, -x])}
        lax.cond(o, lambda: sawlog.log({"a": value}, step=i), lambda: None)
        sawlog.log({"t": total}, step=i)
        return total, None

    return lax.scan(body, 0.0, (jnp.arange(len(xs)), xs, on))[0]


LENGTH = 5
XS = np.array([1.0, -2.0, 3.0, 0.5, 4.0], np.float32)
PATTERNS = st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH).map(np.array)


def sometimes_oracle(xs: np.ndarray, on: np.ndarray) -> Table:
    totals = np.cumsum(xs, dtype=np.float32)
    values = [{"s": t, "v": np.stack([x, -x])} for x, t in zip(xs, totals, strict=True)]
    everything = list(range(len(xs)))
    table = {"t": Column(list(totals), {"step": everything})}
    if on.any():
        table["a"] = Column(values, {"step": everything}).at(np.flatnonzero(on))
    return table


def test_export_round_trip() -> None:
    spooled = jax.jit(sawlog.spool(sometimes))
    on = np.array([True, False, True, True, False])
    data = jax.export.export(spooled)(XS, on).serialize()
    out, logs = jax.export.deserialize(data).call(XS, on)
    same(out, XS.sum())
    assert type(logs) is logdict
    agrees(logs, sometimes_oracle(XS, on))
    none = jax.export.deserialize(data).call(XS, ~on & on)[1]
    agrees(none, sometimes_oracle(XS, ~on & on))


# -- in and out of transformations -----------------------------------------------------------------


def test_in_and_out_of_jit() -> None:
    table = {"a": Column([entry("tree", i) for i in range(3)], {"step": [4, 5, 6]})}
    logs = to_logs(table, device=True)

    @jax.jit
    def f(logs: logdict) -> Any:
        assert type(logs) is logdict
        assert set(logs) == {"a"}
        assert set(logs.step) == {"a"}
        more = logs + logs
        return more, more.slice[1:-1], more.reduce("max"), jax.tree.map(jnp.negative, logs)

    more, part, top, negative = f(logs)
    double = {"a": table["a"] + table["a"]}
    agrees(more, double)
    agrees(part, {"a": double["a"][1:-1]})
    agrees_reduced(top, table, {"a": "max"})
    same(negative["a"], jax.tree.map(np.negative, stacked(table["a"].entries)))
    agrees(f(more)[0], {"a": double["a"] + double["a"]})


def test_in_and_out_of_vmap_and_scan() -> None:
    logs = logdict({"a": jnp.arange(6.0).reshape(3, 2)}, step={"a": jnp.arange(3)})
    mapped = jax.vmap(lambda one: jax.tree.map(lambda x: 2 * x, one))(logs)
    agrees(mapped, {"a": Column(list(2 * np.arange(6).reshape(3, 2)), {"step": [0, 2, 4]})})

    def body(carry: logdict, one: logdict) -> Any:
        assert type(carry) is type(one) is logdict
        new = jax.tree.map(jnp.add, carry, one)
        return new, new

    zero = jax.tree.map(lambda x: jnp.zeros_like(x[0]), logs)
    last, every = lax.scan(body, zero, logs)
    sums = np.cumsum(np.arange(6).reshape(3, 2), axis=0)
    same(last["a"], sums[-1])
    same(last.step["a"], 3)
    same(every["a"], sums)
    same(every.step["a"], np.array([0, 1, 3]))


def test_gradient_through_logs() -> None:
    def f(x: Any) -> Any:
        def g(x: Any) -> None:
            sawlog.log({"x": x**2})
            sawlog.log({"x": x**3})

        return sawlog.spool(g)(x)[1].reduce("sum")["x"]

    same(jax.grad(f)(2.0), 4.0 + 12.0)


# -- outer axes ------------------------------------------------------------------------------------


def loop(x: Any) -> Any:
    def body(v: Any, i: Any) -> Any:
        v = v * 2 + i
        sawlog.log({"v": v, "w": jnp.stack([v, -v])}, step=i + 1)
        return v, None

    sawlog.log({"once": {"p": x, "q": jnp.stack([x, x + 1])}}, step=0)
    return lax.scan(body, x, jnp.arange(LENGTH))[0]


def loop_oracle(x: float) -> Table:
    values = []
    v = np.float32(x)
    for i in range(LENGTH):
        v = v * 2 + np.float32(i)
        values.append(v)
    steps = {"step": list(range(1, LENGTH + 1))}
    return {
        "once": Column(
            [{"p": np.float32(x), "q": np.array([x, x + 1], np.float32)}], {"step": [0]}
        ),
        "v": Column(values, steps),
        "w": Column([np.stack([v, -v]) for v in values], steps),
    }


BATCH = np.array([0.0, 1.0, -3.0], np.float32)


def over_lanes(make: Any) -> Any:
    return stacked([make(x) for x in BATCH])


@functools.cache
def spooled_lanes() -> logdict:
    return jax.vmap(sawlog.spool(loop))(BATCH)[1]


@pytest.mark.turns(4)
@pytest.mark.parametrize("mode", OTHERS_FIRST)
def test_reduce_under_an_outer_vmap(mode: str) -> None:
    """Both ways: on the mapped logs, and inside of the mapped function."""
    inside = jax.jit(jax.vmap(lambda x: sawlog.spool(loop)(x)[1].reduce(mode)))
    for logs in (spooled_lanes().reduce(mode), inside(BATCH)):
        assert set(logs) == {"once", "v", "w"}
        for key in logs:
            columns = [loop_oracle(x)[key] for x in BATCH]
            if mode == "append":
                full = [stacked(c.entries) for c in columns]
                want = stacked([c.entries[0] for c in columns] if key == "once" else full)
                steps = [c.steps["step"][0 if key == "once" else slice(None)] for c in columns]
            else:
                want = stacked([
                    jax.tree.map(lambda x: oracle_reduce(x, mode), stacked(c.entries))
                    for c in columns
                ])  # fmt: skip
                steps = [oracle_step(c.steps["step"], mode) for c in columns]
            same(logs[key], want)
            same(logs.step[key], np.array(steps))


@pytest.mark.parametrize("index", [slice(1, 3), slice(None, None, -2), slice(-2, 99), slice(0, 0)])
def test_slice_under_an_outer_vmap(index: slice) -> None:
    logs = jax.vmap(sawlog.spool(loop))(BATCH)[1].slice[index]
    assert set(logs) == {"once", "v", "w"}
    for key in logs:
        full = over_lanes(lambda x, key=key: stacked(loop_oracle(x)[key].entries))
        same(logs[key], jax.tree.map(lambda a: a[:, index], full))
        steps = np.array([loop_oracle(x)[key].steps["step"] for x in BATCH])
        same(logs.step[key], steps[:, index])


@pytest.mark.parametrize("depth", [1, 2])
def test_entries_under_outer_vmaps(depth: int) -> None:
    """The entry axis comes first, whatever stands around."""
    fun, xs = jax.vmap(sawlog.spool(loop)), BATCH
    if depth == 2:
        fun, xs = jax.vmap(fun), np.stack([BATCH, BATCH + 1])
    logs = fun(xs)[1]
    found = logs.entries()
    assert set(found) == {"once", "v", "w"}
    lead = (len(BATCH),) if depth == 1 else (2, len(BATCH))
    assert found["v"].shape == (LENGTH, *lead)
    assert found["w"].shape == (LENGTH, *lead, 2)
    assert found["once"]["p"].shape == (1, *lead)
    assert found["once"]["q"].shape == (1, *lead, 2)
    for lane in np.ndindex(lead):
        table = loop_oracle(xs[lane])
        for key in table:
            same(
                jax.tree.map(lambda a, lane=lane: a[(slice(None), *lane)], found[key]),
                stacked(table[key].entries),
            )


def test_add_under_an_outer_vmap() -> None:
    one = jax.vmap(sawlog.spool(loop))(BATCH)[1]
    logs = one + one
    assert set(logs) == {"once", "v", "w"}
    for key in logs:
        columns = [loop_oracle(x)[key] for x in BATCH]
        same(logs[key], stacked([stacked((c + c).entries) for c in columns]))
        same(logs.step[key], np.array([(c + c).steps["step"] for c in columns]))


def test_a_lane_taken_out_is_a_logdict_again() -> None:
    logs = jax.vmap(sawlog.spool(loop))(BATCH)[1]
    for i, x in enumerate(BATCH):
        lane = jax.tree.map(lambda a, i=i: a[i], logs)
        agrees(lane, loop_oracle(x))
        agrees_reduced(lane.reduce("mean"), loop_oracle(x), dict.fromkeys(logs, "mean"))


def test_outer_scan_of_a_spooled_function() -> None:
    """The axis of the user's own scan is an outer axis, not the entries."""

    def body(carry: Any, x: Any) -> Any:
        return carry, sawlog.spool(loop)(x)[1]

    logs = lax.scan(body, 0, BATCH)[1].reduce("last")
    assert set(logs) == {"once", "v", "w"}
    for key in logs:
        same(logs[key], over_lanes(lambda x, key=key: loop_oracle(x)[key].entries[-1]))


# -- entries that may be missing -------------------------------------------------------------------

spooled_sometimes = sawlog.spool(sometimes)
jitted_sometimes = jax.jit(spooled_sometimes)


def agrees_where_present(logs: logdict, on: np.ndarray, table: Table) -> None:
    agrees(logs, table)
    if not on.any():
        assert jax.tree.map(lambda x: x.shape, logs["a"]) == {"s": (0,), "v": (0, 2)}
        assert logs.get("a") is None
        with pytest.raises(KeyError):
            logs["nothing"]


@EXAMPLES
@given(PATTERNS)
def test_concrete_logs_hold_real_entries_only(on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    for fun in (spooled_sometimes, jitted_sometimes):
        agrees_where_present(fun(XS, on)[1], on, table)
    logs = jitted_sometimes(XS, on)[1]
    agrees(logs + logs, {key: column + column for key, column in table.items()})
    agrees(jitted_sometimes(XS, on)[1].to_numpy(), table)
    agrees(pickle.loads(pickle.dumps(jitted_sometimes(XS, on)[1])), table)
    agrees(copy.deepcopy(jitted_sometimes(XS, on)[1]), table)


FIRST_LOOKS = {
    "len": lambda logs: len(logs),
    "iter": lambda logs: sorted(logs),
    "keys": lambda logs: sorted(logs.keys()),
    "values": lambda logs: len(list(logs.values())),
    "items": lambda logs: sorted(key for key, _ in logs.items()),
    "contains": lambda logs: "a" in logs,
    "getitem": lambda logs: logs["a"]["s"].shape,
    "get": lambda logs: logs.get("a", {"s": np.zeros(99)})["s"].shape,
    "pop": lambda logs: logs.pop("a", {"s": np.zeros(99)})["s"].shape,
    "popitem": lambda logs: logs.popitem()[0],
    "setdefault": lambda logs: logs.setdefault("a", {"s": np.zeros(99)})["s"].shape,
    "reversed": lambda logs: list(reversed(logs)),
    "dict": lambda logs: sorted(dict(logs)),
    "unpacking": lambda logs: dict(**logs).keys() ^ {"t"},
    "copy": lambda logs: sorted(logs.copy()),
    "repr": lambda logs: len(repr(logs).splitlines()),
    "bool": lambda logs: bool(logs.filter(lambda key, value: key == "a")),
    "asdict": lambda logs: logs.asdict().get("a", {"s": np.zeros(99)})["s"].shape,
    "entries": lambda logs: logs.entries().get("a", {"s": np.zeros(99)})["s"].shape,
    "steps": lambda logs: sorted(logs.step),
    "mask": lambda logs: {key: mask.tolist() for key, mask in logs.mask.items()},
}


@pytest.mark.parametrize("look", FIRST_LOOKS)
@pytest.mark.parametrize("on", [[1, 0, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
def test_the_first_look_sees_real_entries_only(look: str, on: list[int]) -> None:
    """Logs that come out of a jit settle at the first look, whichever it is."""
    settled = spooled_sometimes(XS, np.array(on, bool))[1]
    fresh = jitted_sometimes(XS, np.array(on, bool))[1]
    assert FIRST_LOOKS[look](fresh) == FIRST_LOOKS[look](settled)


def test_popping_first_gives_the_compacted_value() -> None:
    on = np.array([True, False, True, False, False])
    want = stacked(sometimes_oracle(XS, on)["a"].entries)
    same(jitted_sometimes(XS, on)[1].pop("a"), want)
    only = jax.jit(sawlog.spool(sometimes, argnames="a"))(XS, on)[1]
    key, value = only.popitem()
    assert key == "a"
    same(value, want)


def test_deleting_what_was_not_logged_is_a_key_error() -> None:
    none = np.zeros(LENGTH, bool)
    for fun in (spooled_sometimes, jitted_sometimes):
        logs = fun(XS, none)[1]
        with pytest.raises(KeyError):
            del logs["a"]
        logs = fun(XS, none)[1]
        with pytest.raises(KeyError):
            logs.pop("a")


def test_setting_what_was_not_logged() -> None:
    for fun in (spooled_sometimes, jitted_sometimes):
        logs = fun(XS, np.zeros(LENGTH, bool))[1]
        logs["a"] = np.arange(3)
        assert set(logs) == {"a", "t"}
        same(logs["a"], np.arange(3))
        same(logs.entries()["a"], np.arange(3))
        assert set(logs.step) == {"t"}


def test_empty_keys_survive_round_trips() -> None:
    """`logs["a"]` of a key that was not logged is an empty array, in a copy too."""
    logs = spooled_sometimes(XS, np.zeros(LENGTH, bool))[1]
    trips = {
        "copy": copy.copy(logs),
        "deepcopy": copy.deepcopy(logs),
        "pickle": pickle.loads(pickle.dumps(logs)),
        "to_numpy": logs.to_numpy(),
        "tree": jax.tree.map(lambda x: x, logs),
        "slice": logs.slice[1:],
        "reduce": logs.reduce("mean"),
    }
    for name, back in trips.items():
        assert "a" not in back, name
        assert jax.tree.map(lambda x: x.shape, back["a"]) == {"s": (0,), "v": (0, 2)}, name
    renamed = logs.prefix("p/")
    assert jax.tree.map(lambda x: x.shape, renamed["p/a"]) == {"s": (0,), "v": (0, 2)}
    with pytest.raises(KeyError):
        renamed["a"]


@jax.jit
def masks_inside(xs: Any, on: Any) -> Any:
    logs = spooled_sometimes(xs, on)[1]
    assert set(logs) == set(logs.mask) == {"a", "t"}
    return dict(logs), logs.mask["a"], logs.step["a"]


@EXAMPLES
@given(PATTERNS)
def test_mask_inside_jit(on: np.ndarray) -> None:
    values, mask, steps = masks_inside(XS, on)
    np.testing.assert_array_equal(mask, on)
    totals = np.cumsum(XS)
    same(values["a"]["s"][on], totals[on])
    same(values["a"]["v"][on], np.stack([XS, -XS], 1)[on])
    same(steps[on], np.arange(LENGTH)[on])


def inside(operation: Any) -> Any:
    return jax.jit(lambda xs, on: operation(spooled_sometimes(xs, on)[1]))


REDUCED = {mode: inside(lambda logs, mode=mode: logs.reduce(mode)) for mode in MODES}
INDICES = [
    slice(None), slice(1, None), slice(None, 2), slice(-2, None), slice(None, -1), slice(1, -1),
    slice(None, None, 2), slice(1, 9, 2), slice(-9, 9, 3), slice(3, 1), slice(-1, -3),
]  # fmt: skip
SLICED = {str(index): inside(lambda logs, index=index: logs.slice[index]) for index in INDICES}
DOUBLED = inside(lambda logs: logs + logs.filter(lambda key, value: key == "a"))
CHAINED = inside(lambda logs: (logs + logs).slice[1:-1].prefix("p/").reduce("sum"))


@pytest.mark.turns(2)
@pytest.mark.parametrize("mode", OTHERS_FIRST)
@FEWER
@given(on=PATTERNS)
def test_reduce_inside_jit_respects_the_mask(mode: str, on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    agrees_reduced(REDUCED[mode](XS, on), table, dict.fromkeys(table, mode))


@pytest.mark.turns(2)
@pytest.mark.parametrize("mode", MODES)
@FEWER
@given(on=PATTERNS)
def test_reduce_option_respects_the_mask(mode: str, on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    logs = sawlog.spool(sometimes, reduce=mode)(XS, on)[1]
    agrees_reduced(logs, table, dict.fromkeys(table, mode))
    assert gaps(logs) == set()


@pytest.mark.turns(3)
@pytest.mark.parametrize("index", INDICES, ids=str)
@FEWER
@given(on=PATTERNS)
def test_slice_inside_jit_respects_the_mask(index: slice, on: np.ndarray) -> None:
    table = {key: column[index] for key, column in sometimes_oracle(XS, on).items()}
    logs = SLICED[str(index)](XS, on)
    full = {key: column for key, column in table.items() if column.entries}
    assert full.keys() <= logs.keys()
    agrees(logs.filter(lambda key, value: key in full), full)
    assert all(jax.tree.leaves(logs[key])[0].shape[0] == 0 for key in logs.keys() - full.keys())


@pytest.mark.turns(2)
@pytest.mark.parametrize("interval", [1, 2, 3])
@FEWER
@given(on=PATTERNS)
def test_interval_counts_real_entries(interval: int, on: np.ndarray) -> None:
    table = {k: column[::interval] for k, column in sometimes_oracle(XS, on).items()}
    agrees(sawlog.spool(sometimes, interval=interval)(XS, on)[1], table)


@EXAMPLES
@given(PATTERNS)
def test_add_inside_jit_respects_the_mask(on: np.ndarray) -> None:
    table = sometimes_oracle(XS, on)
    want = {k: column + column if k == "a" else column for k, column in table.items()}
    agrees(DOUBLED(XS, on), want)


@EXAMPLES
@given(PATTERNS)
def test_chained_operations_respect_the_mask(on: np.ndarray) -> None:
    table = {
        "p/" + k: (column + column)[1:-1]
        for k, column in sometimes_oracle(XS, on).items()
        if len(column.entries) > 1 or k == "t"
    }
    agrees_reduced(CHAINED(XS, on), table, dict.fromkeys(table, "sum"))


# -- lanes that differ -----------------------------------------------------------------------------

LANES = 3
LANE_XS = np.stack([XS, XS[::-1], XS * 2])
LANE_PATTERNS = st.lists(PATTERNS, min_size=LANES, max_size=LANES).map(np.stack)
spool_of_vmap = sawlog.spool(jax.vmap(sometimes))
vmap_of_spool = jax.vmap(sawlog.spool(sometimes))


def one_lane(value: Any, mask: Any, steps: Any, lane: int, axis: int) -> Column:
    """The entries of a lane whose mask is true; `axis` is that of the lanes."""
    rows = np.flatnonzero(np.take(np.asarray(mask), lane, axis))
    value = jax.tree.map(lambda x: np.take(np.asarray(x), lane, axis), value)
    steps = np.take(np.asarray(steps), lane, axis)
    return Column(
        [jax.tree.map(lambda x, r=r: x[r], value) for r in rows], {"step": list(steps[rows])}
    )


def agrees_by_lane(logs: logdict, tables: list[Table], axis: int) -> None:
    """Under the mask each lane holds what the oracle says; `axis` is that of the lanes."""
    if not any("a" in table for table in tables) and "a" not in logs:
        return
    shape = logs["a"]["s"].shape[:2]
    mask = logs.mask.get("a", np.ones(shape, bool))
    assert mask.shape == shape
    for lane, table in enumerate(tables):
        column = one_lane(logs["a"], mask, logs.step["a"], lane, axis)
        want = table.get("a", Column([], {"step": []}))
        assert len(column.entries) == len(want.entries)
        assert column.steps == want.steps
        if want.entries:
            same(stacked(column.entries), stacked(want.entries))


@EXAMPLES
@given(LANE_PATTERNS)
def test_ragged_lanes_inside(on: np.ndarray) -> None:
    """spool(vmap(f)): [entries, batch, ...]."""
    tables = [sometimes_oracle(x, o) for x, o in zip(LANE_XS, on, strict=True)]
    for fun in (spool_of_vmap, jax.jit(spool_of_vmap)):
        logs = fun(LANE_XS, on)[1]
        assert set(logs) == ({"a", "t"} if on.any() else {"t"})
        if on.any():
            rows = on.any(axis=0)
            assert logs["a"]["v"].shape == (rows.sum(), LANES, 2)
            assert ("a" in gaps(logs)) == (not on[:, rows].all())
            if "a" in gaps(logs):
                np.testing.assert_array_equal(logs.mask["a"], on.T[rows])
        agrees_by_lane(logs, tables, axis=1)
        same(logs["t"], np.cumsum(LANE_XS, axis=1).T)


@EXAMPLES
@given(LANE_PATTERNS)
def test_ragged_lanes_outside(on: np.ndarray) -> None:
    """vmap(spool(f)): [batch, entries, ...]."""
    tables = [sometimes_oracle(x, o) for x, o in zip(LANE_XS, on, strict=True)]
    logs = vmap_of_spool(LANE_XS, on)[1]
    assert set(logs) == {"a", "t"}
    np.testing.assert_array_equal(logs.mask["a"], on)
    agrees_by_lane(logs, tables, axis=0)
    same(logs["t"], np.cumsum(LANE_XS, axis=1))
    assert logs.entries()["a"]["v"].shape == (LENGTH, LANES, 2)


@EXAMPLES
@given(LANE_PATTERNS)
def test_a_ragged_lane_taken_out_settles(on: np.ndarray) -> None:
    logs = vmap_of_spool(LANE_XS, on)[1]
    for lane in range(LANES):
        one = jax.tree.map(lambda x, lane=lane: x[lane], logs)
        agrees(one, sometimes_oracle(LANE_XS[lane], on[lane]))


WAYS = ["spool of vmap", "inside jit", "vmap of spool", "inside vmap"]


@pytest.mark.turns(3)
@pytest.mark.parametrize(("mode", "way"), pairs([m for m in MODES if m != "append"], WAYS, few=1))
@examples(2, 3)
@given(on=LANE_PATTERNS)
def test_ragged_lanes_reduce_alone(way: str, mode: str, on: np.ndarray) -> None:
    fun = {
        "spool of vmap": lambda *a: spool_of_vmap(*a)[1].reduce(mode),
        "vmap of spool": lambda *a: vmap_of_spool(*a)[1].reduce(mode),
        "inside jit": LANE_REDUCED[mode, "jit"],
        "inside vmap": LANE_REDUCED[mode, "vmap"],
    }[way]
    logs = fun(LANE_XS, on)
    assert "t" in logs
    assert ("a" in logs) or not on.any()
    for lane in range(LANES):
        table = sometimes_oracle(LANE_XS[lane], on[lane])
        ran = "a" in logs and bool(logs.mask.get("a", np.ones(LANES, bool))[lane])
        assert ran == on[lane].any()
        for key, column in table.items():
            want = jax.tree.map(lambda x: oracle_reduce(x, mode), stacked(column.entries))
            same(jax.tree.map(lambda x, lane=lane: x[lane], logs[key]), want)
            same(logs.step[key][lane], oracle_step(column.steps["step"], mode))


LANE_REDUCED = {
    (mode, how): fun
    for mode in MODES
    for how, fun in {
        "jit": jax.jit(lambda xs, on, mode=mode: spool_of_vmap(xs, on)[1].reduce(mode)),
        "vmap": jax.jit(
            jax.vmap(lambda xs, on, mode=mode: spooled_sometimes(xs, on)[1].reduce(mode))
        ),
    }.items()
}


def test_the_mask_goes_when_every_lane_has_an_entry() -> None:
    """Only where lanes differ is the mask kept."""
    on = np.eye(LANES, LENGTH, dtype=bool)
    logs = spool_of_vmap(LANE_XS, on)[1]
    assert gaps(logs) == {"a"}
    assert gaps(logs.reduce("last")) == set()
    same(logs.reduce("last")["a"]["v"][:, 0], np.diagonal(LANE_XS))


@pytest.mark.parametrize("way", ["spool of vmap", "vmap of spool"])
@FEWER
@given(on=LANE_PATTERNS, index=st.sampled_from(INDICES))
def test_ragged_lanes_slice_alone(way: str, on: np.ndarray, index: slice) -> None:
    inner = way == "spool of vmap"
    logs = (spool_of_vmap if inner else vmap_of_spool)(LANE_XS, on)[1]
    tables = [
        {key: column[index] for key, column in sometimes_oracle(x, o).items()}
        for x, o in zip(LANE_XS, on, strict=True)
    ]
    agrees_by_lane(logs.slice[index], tables, axis=1 if inner else 0)


@pytest.mark.parametrize("way", ["spool of vmap", "vmap of spool"])
@FEWER
@given(on=LANE_PATTERNS, other=LANE_PATTERNS)
def test_ragged_lanes_add_alone(way: str, on: np.ndarray, other: np.ndarray) -> None:
    inner = way == "spool of vmap"
    fun = spool_of_vmap if inner else vmap_of_spool
    logs = fun(LANE_XS, on)[1] + fun(LANE_XS, other)[1]
    tables = []
    for x, o, p in zip(LANE_XS, on, other, strict=True):
        tables.append(oracle_add(sometimes_oracle(x, o), sometimes_oracle(x, p)))
    assert ("a" in logs) or not (on | other).any()
    agrees_by_lane(logs, tables, axis=1 if inner else 0)
    same(np.asarray(logs["t"]).shape, (2 * LENGTH, LANES) if inner else (LANES, 2 * LENGTH))


def keyed(key: Any, on: Any) -> None:
    lax.cond(on, lambda: sawlog.log({"k": key, "h": jnp.bfloat16(2)}), lambda: None)


@pytest.mark.parametrize("on", [[True, False, True], [True] * 3])
def test_prng_keys_and_bf16_by_lane(on: list[bool]) -> None:
    keys, ran = jax.random.split(jax.random.key(0), LANES), np.array(on)
    lanes = jax.vmap(sawlog.spool(keyed))(keys, ran)[1]
    assert set(lanes) == {"k", "h"}
    assert jnp.array_equal(lanes["k"][ran], keys[ran])
    logs = sawlog.spool(jax.vmap(keyed))(keys, ran)[1]
    assert set(logs) == {"k", "h"}
    assert jnp.array_equal(logs["k"][ran], keys[ran])
    np.testing.assert_array_equal(np.asarray(logs["h"], np.float32)[ran], 2)
    np.testing.assert_array_equal(logs.mask.get("k", ran), ran)


def one_shot(x: Any, on: Any) -> None:
    lax.cond(on, lambda: sawlog.log({"yes": x}, step=7), lambda: sawlog.log({"no": -x}, step=8))


spool_one_shot = sawlog.spool(jax.vmap(one_shot))


@EXAMPLES
@given(st.lists(st.booleans(), min_size=LANES, max_size=LANES).map(np.array))
def test_one_shot_branches_by_lane(on: np.ndarray) -> None:
    xs = np.arange(1.0, LANES + 1, dtype=np.float32)
    logs = spool_one_shot(xs, on)[1]
    wanted = {"yes": (on, xs, 7), "no": (~on, -xs, 8)}
    assert set(logs) == {key for key, (ran, _, _) in wanted.items() if ran.any()}
    for key, (ran, values, step) in wanted.items():
        if not ran.any():
            assert logs[key].shape == (0, LANES)
            continue
        assert logs[key].shape == (LANES,)
        same(logs[key][ran], values[ran])
        np.testing.assert_array_equal(np.asarray(logs.step[key])[ran], step)
        assert (key in gaps(logs)) == (not ran.all())
        np.testing.assert_array_equal(logs.mask.get(key, ran), ran)
    lanes = jax.vmap(sawlog.spool(one_shot))(xs, on)[1]
    assert set(lanes) == set(lanes.mask) == {"yes", "no"}
    for key, (ran, values, _) in wanted.items():
        np.testing.assert_array_equal(lanes.mask[key], ran)
        same(lanes[key][ran], values[ran])
