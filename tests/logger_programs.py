"""Loggers and programs for the tests of loggers."""

from __future__ import annotations

import collections
import functools
import operator
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog import logdict
from sawlog.loggers import Logger
from sawlog.records import Records

SEEDS = 8

KEYS = jax.vmap(jax.random.key)(jnp.arange(SEEDS))


def start_of(key: Any) -> Any:
    """The seed itself: whole numbers, so that nothing is rounded differently under vmap."""
    return jax.random.key_data(key)[1].astype(jnp.float32)


def train(key: Any) -> Any:
    """Logs once, in a loop, in a branch of which it depends on the seed whether it runs."""
    x = start_of(key)
    sawlog.log({"start": x, "key": key}, tags="once")

    def body(x: Any, i: Any) -> Any:
        sawlog.log({"x": x, "tree": {"a": (x, 2 * x)}}, step=i)
        lax.cond(x > 5, lambda: sawlog.log({"big": x}, step=i), lambda: None)
        lax.cond(x > 99, lambda: sawlog.log({"never": x}), lambda: None)
        return x + 1, None

    return lax.scan(body, x, jnp.arange(3))[0]


def random_walk(steps: int) -> Any:
    """A program that logs a sum of so many random numbers, one by one."""

    def train(key: Any) -> Any:
        def step(x: Any, i: Any) -> Any:
            x = x + jax.random.normal(jax.random.fold_in(key, i))
            sawlog.log({"x": x}, step=i)
            return x, None

        return lax.scan(step, 0.0, jnp.arange(steps))[0]

    return train


def by_hand(seed: int) -> dict[str, list[float]]:
    xs = [float(seed + i) for i in range(3)]
    return {"start": [seed], "x": xs, "big": [x for x in xs if x > 5]}


def folders(path: pathlib.Path) -> list[str]:
    return sorted(child.name for child in path.iterdir())


def seed_names(count: int = SEEDS) -> list[str]:
    return [f"seed-{i}" for i in range(count)]


def sharded_keys(kind: AxisType) -> Any:
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    return mesh, jax.device_put(KEYS, NamedSharding(mesh, P("d")))


def over_devices(run: Callable[..., Any]) -> Any:
    mesh, keys = sharded_keys(AxisType.Explicit)
    local = jax.shard_map(jax.vmap(run), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    return jax.jit(local)(keys)


WAYS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "one by one": lambda run: [run(key) for key in KEYS],
    "jit": lambda run: [jax.jit(run)(key) for key in KEYS[:2]],
    "vmap": lambda run: jax.vmap(run)(KEYS),
    "jit of vmap": lambda run: jax.jit(jax.vmap(run))(KEYS),
    "vmap of jit": lambda run: jax.vmap(jax.jit(run))(KEYS),
    "nested vmap": lambda run: jax.jit(jax.vmap(jax.vmap(run)))(KEYS.reshape(2, 4)),
    "scan": lambda run: lax.scan(lambda c, key: (c, run(key)), 0, KEYS),
    "scan of vmap": lambda run: lax.map(jax.vmap(run), KEYS.reshape(2, 4)),
    "grad": lambda run: jax.vmap(jax.grad(lambda w, key: w * run(key)), (None, 0))(1.0, KEYS),
    "shard_map": over_devices,
    "sharded": lambda run: jax.jit(jax.vmap(run))(sharded_keys(AxisType.Auto)[1]),
}


def of_tap(fun: Callable[..., Any], *args: Any, **options: Any) -> logdict:
    """All that the callback of ``tap`` is given, put together."""
    seen: list[logdict] = []
    sawlog.tap(fun, seen.append, **options)(*args)
    return functools.reduce(operator.add, seen)


class MemorySink:
    def __init__(self) -> None:
        self.records: list[Records] = []
        self.deeds: list[str] = []
        self.broken: Exception | None = None

    def write(self, records: Records) -> None:
        if self.broken is not None:
            raise self.broken
        self.records.append(records)

    def flush(self) -> None:
        self.deeds.append("flush")

    def close(self) -> None:
        self.deeds.append("close")


class MemoryLogger(Logger):
    """All that a new kind of logger needs."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks: dict[str, MemorySink] = collections.defaultdict(MemorySink)

    def open_run(self, name: str, about: Mapping[str, Any], exists: str) -> MemorySink:
        return self.sinks[name]
