"""What JAX programs log goes through sinks and can still be loaded."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.loggers import Logger
from sawlog.sinks import (
    Async,
    Every,
    Fanout,
    JsonlSink,
    MemorySink,
    Prefix,
    Reduce,
    Select,
    StoreSink,
)


class Custom(Logger):
    """A logger whose runs go to whatever sink is made for a name."""

    def __init__(self, make):
        super().__init__(exists="append")
        self.make = make

    def open_run(self, name, about, exists):
        return self.make(name)


def train(key):
    def step(x, i):
        x = x + jax.random.uniform(jax.random.fold_in(key, i))
        sawlog.log({"x": x, "tree": {"a": x * 2, "b": jnp.stack([x, -x])}}, step=i)
        return x, None

    return jax.lax.scan(step, 0.0, jnp.arange(6))[0]


def run(make, seeds=3):
    keys = jax.vmap(jax.random.key)(jnp.arange(seeds))
    with Custom(make) as logger:
        spooled = jax.vmap(lambda key: logger.spool(train, logger.init(key))(key))
        jax.block_until_ready(jax.jit(spooled)(keys))
    return [sawlog.spool(train)(key)[1] for key in keys]


def test_one_run_a_seed_in_every_sink(tmp_path):
    memories = {}

    def make(name):
        memories[name] = MemorySink()
        lines, folder = JsonlSink(tmp_path / f"{name}.jsonl"), StoreSink(tmp_path / name)
        return Async(Fanout(memories[name], lines, Prefix(folder, "run/")))

    expected = run(make)
    assert set(memories) == {"seed-0", "seed-1", "seed-2"}
    for seed, logs in enumerate(expected):
        assert memories[f"seed-{seed}"].logs["x"].tolist() == logs["x"].tolist()
        lines = map(json.loads, (tmp_path / f"seed-{seed}.jsonl").read_text().splitlines())
        found = [(line["step"], np.float32(line["value"])) for line in lines if line["name"] == "x"]
        assert found == list(enumerate(logs["x"]))
        loaded = sawlog.load(tmp_path / f"seed-{seed}")
        assert set(loaded) == {"run/x", "run/tree"}
        assert set(loaded["run/tree"]) == {"a", "b"}
        np.testing.assert_array_equal(loaded["run/tree"]["b"], logs["tree"]["b"])
        np.testing.assert_array_equal(loaded.step["run/x"], np.arange(6))


@pytest.mark.parametrize(
    ("around", "chosen"),
    [
        (lambda sink: Every(sink, 4), [0, 4]),
        (lambda sink: Every(sink, 3, axis="step"), [0, 3]),
        (lambda sink: Reduce(sink, 4, "last"), [3, 5]),
    ],
)
def test_fewer_entries_can_be_loaded(tmp_path, around, chosen):
    [logs] = run(lambda name: Select(around(StoreSink(tmp_path / name)), names="tree"), seeds=1)
    loaded = sawlog.load(tmp_path / "seed-0")
    assert list(loaded) == ["tree"]
    np.testing.assert_array_equal(loaded["tree"]["b"], np.asarray(logs["tree"]["b"])[chosen])
    np.testing.assert_array_equal(loaded.step["tree"], chosen)
