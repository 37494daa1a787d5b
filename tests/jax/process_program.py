"""What each process of a ``jax.distributed`` job runs in ``test_several_processes``; a script."""

import io
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
from sawlog.errors import ArgumentError, LogValueError
from sawlog.loggers import (
    ConsoleLogger,
    CsvLogger,
    JsonlLogger,
    MemoryLogger,
    MultiLogger,
    SaveLogger,
)


def train(x):
    """Log the mean of a sharded array, and the array, in a loop."""

    def body(c, i):
        sawlog.log({"mean": jnp.mean(x) + i, "x": x + i}, step=i)
        return c + 1, None

    return jax.lax.scan(body, 0.0, jnp.arange(3))[0] + jnp.sum(x)


def only_mean(x):
    sawlog.log({"mean": jnp.mean(x)}, step=0)
    return jnp.sum(x)


def tapped(fun, x):
    seen = []
    out = sawlog.tap(fun, lambda logs: seen.append(as_lists(logs)))(x)
    return float(np.sum(np.asarray(out.addressable_data(0)))), seen


def as_lists(logs):
    return {key: np.asarray(value).tolist() for key, value in logs.items()}


def shards_of(mesh):
    @jax.shard_map(mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    def shards(x):
        sawlog.log({"part": jnp.sum(x)})
        return x

    return shards


def transformations(x, mesh):
    """``log``, ``spool`` and ``tap``, on the devices of this process and on all of them."""
    found = {}
    local = jnp.arange(2.0)
    out, logs = sawlog.spool(only_mean)(local)
    found["local"] = [float(out), as_lists(logs)]
    found["local tap"] = tapped(only_mean, local)
    found["plain"] = float(jax.jit(train)(x))
    out, logs = sawlog.spool(train)(x)
    assert "on the devices of several processes" in repr(logs)
    found["spool"] = [float(out), np.asarray(logs["mean"]).tolist(), logs["x"].shape]
    found["means"] = np.asarray(logs.reduce("mean")["mean"]).tolist()
    found["tap"] = tapped(train, x)
    found["tap in jit"] = tapped(jax.jit(train), x)
    shards = shards_of(mesh)
    found["shards"] = sorted(each["part"] for each in tapped(shards, x)[1])
    out, logs = sawlog.spool(shards)(x)
    parts = [float(np.sum(each.data)) for each in logs["part"].addressable_shards]
    found["shards spooled"] = [logs["part"].shape, sorted(parts)]
    return found


def loggers(x, folder, mesh):
    """Every way of logging with every logger: one process writes."""
    console, memory = io.StringIO(), MemoryLogger()
    several = MultiLogger(
        SaveLogger(folder / "save"),
        CsvLogger(folder / "csv"),
        JsonlLogger(folder / "jsonl"),
        SaveLogger(folder / "each", processes="each"),
        ConsoleLogger(file=console, every=0.001),
        memory,
    )
    with several as logger:
        state = logger.init(7, lr=0.5)
        logger.spool(only_mean, state)(x)
        logger.tap(train, state)(x)
        logger.log(state, {"a": 1.5, "mean": jnp.mean(x)}, step=3)

        @jax.jit
        def program(x):
            inside = logger.init(jax.random.key(8))
            return logger.spool(only_mean, inside)(x)

        program(x).block_until_ready()
        jax.effects_barrier()
        if jax.process_index() == 0:
            assert "seed-8" in memory.runs
        logger.run(only_mean_of_seed)(9)
        assert_refused(lambda: (logger.spool(train, state)(x), logger.flush()))
        logger.tap(shards_of(mesh), state)(x)
        with pytest.raises(ArgumentError, match='processes="each"'):
            logger.flush()
    with SaveLogger(folder / "shards", processes="each") as logger:
        logger.tap(shards_of(mesh), logger.init(7))(x)
    return {"memory": sorted(memory.runs), "shown": bool(console.getvalue())}


def only_mean_of_seed(seed):
    sawlog.log({"seed": seed})
    return seed


def assert_refused(call):
    """What is split over processes is not written, and all processes say so."""
    with pytest.raises(LogValueError, match="on devices of other processes"):
        call()


def store(folder):
    """All processes write to one store."""
    rank = jax.process_index()
    with sawlog.store.create(folder / "rows", exists="append") as writer:
        writer.append(np.arange(3) + 3 * rank, {"row": np.full((3, 2), float(rank))})


def squares(params, batch):
    """One loss for each example."""
    return ((batch["x"] @ params["w"] + params["b"]) ** 2).sum(-1)


PARAMS = {"w": np.array([[1.0, -2.0], [0.5, 3.0]], np.float32), "b": np.ones(2, np.float32)}
EXAMPLES = np.arange(24.0, dtype=np.float32).reshape(12, 2) / 10


def capture(folder, mesh):
    """A run that was there before is replaced once; each process records its own examples."""
    rank = jax.process_index()
    for ids in ([100 + rank], range(6 * rank, 6 * rank + 6)):
        run = sawlog.init("run", root=folder, exists="replace")
        run.setup(statistic="kfac")
        own = {"x": EXAMPLES[np.asarray(ids) % 100]}
        run.watch(squares, PARAMS, own, quiet=True)
        run.record(ids, PARAMS, own)
        run.finalize()
    return [str(run.store_path), run.statistics.kfac("w")[0].tolist(), whole_batch(mesh)]


def whole_batch(mesh):
    """Rows of a batch on the devices of both processes, some of them on this one."""
    by_example = NamedSharding(mesh, P("x"))
    x = jax.make_array_from_callback((12, 2), by_example, lambda at: EXAMPLES[at])
    rows = sawlog.jax.capture(squares)(PARAMS, {"x": x}).grads["w"]
    assert rows.sharding.is_equivalent_to(by_example, 3)
    return [np.asarray(each.data).tolist() for each in rows.addressable_shards]


def main(rank, port, folder):
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(rank))
    folder = Path(folder)
    assert (jax.device_count(), jax.local_device_count()) == (4, 2)
    mesh = jax.make_mesh((4,), ("x",))
    values = np.arange(8.0, dtype=np.float32)
    x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("x")), lambda at: values[at])
    found = transformations(x, mesh)
    found["loggers"] = loggers(x, folder, mesh)
    store(folder)
    found["capture"] = capture(folder, mesh)
    (folder / f"found-{rank}.json").write_text(json.dumps(found))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
