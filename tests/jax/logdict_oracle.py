"""What a logdict must answer, computed by lists of entries."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.export
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax import numpy as jnp

import sawlog
from sawlog import logdict
from tests.jax.same import gaps
from tests.thorough import examples

EXAMPLES = examples(6, 20)

FEWER = examples(3, 8)

MODES = ("mean", "sum", "min", "max", "first", "last", "replace", "count", "std", "var", "append")

OTHERS_FIRST = (*MODES[1:], MODES[0])
"""For tests by turns: the modes whose turn it is not in the order of ``MODES``."""


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


def oracle_add(one: Table, two: Table) -> Table:
    both = {key: one[key] + two[key] for key in one if key in two}
    return {**one, **{key: c for key, c in two.items() if key not in one}, **both}


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


spooled_sometimes = sawlog.spool(sometimes)

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


def inside(operation: Any) -> Any:
    return jax.jit(lambda xs, on: operation(spooled_sometimes(xs, on)[1]))


INDICES = [
    slice(None), slice(1, None), slice(None, 2), slice(-2, None), slice(None, -1), slice(1, -1),
    slice(None, None, 2), slice(1, 9, 2), slice(-9, 9, 3), slice(3, 1), slice(-1, -3),
]  # fmt: skip

SLICED = {str(index): inside(lambda logs, index=index: logs.slice[index]) for index in INDICES}

spool_of_vmap = sawlog.spool(jax.vmap(sometimes))

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
