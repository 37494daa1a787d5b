"""Two processes of ``jax.distributed`` with two devices each; see ``process_program.py``."""

import json

import jaxlib
import numpy as np

import sawlog
from tests import xla_flags
from tests.jax.process_program import EXAMPLES, PARAMS
from tests.launched import free_port, start, wait

DEVICES = "--xla_force_host_platform_device_count=2"
FLAGS = " ".join((DEVICES, *xla_flags.quick(jaxlib.__version__)))


def launch(folder):
    port = free_port()
    processes = [
        start("tests.jax.process_program", rank, port, folder, XLA_FLAGS=FLAGS, JAX_PLATFORMS="cpu")
        for rank in range(2)
    ]
    assert wait(processes) == [0, 0]
    return [json.loads((folder / f"found-{rank}.json").read_text()) for rank in range(2)]


def test_two_processes(tmp_path):
    first, second = launch(tmp_path)
    steps, x = [0, 1, 2], np.arange(8.0)
    for found in (first, second):
        assert found["local"] == [1.0, {"mean": 0.5}]
        assert found["local tap"] == [1.0, [{"mean": 0.5}]]
        assert found["plain"] == 31.0
        assert found["spool"] == [31.0, [3.5, 4.5, 5.5], [3, 8]]
        assert found["means"] == 4.5
        assert found["shards spooled"][0] == [4]
    # A program over all devices calls back once, in the process of the first device.
    whole = [{"mean": 3.5 + i, "x": (x + i).tolist()} for i in steps]
    assert first["tap"] == first["tap in jit"] == [31.0, whole]
    assert second["tap"] == second["tap in jit"] == [31.0, []]
    # Shards are logged where they are.
    assert first["shards"] == first["shards spooled"][1] == [1.0, 5.0]
    assert second["shards"] == second["shards spooled"][1] == [9.0, 13.0]
    check_loggers(tmp_path, first["loggers"], second["loggers"])
    check_capture(first["capture"], second["capture"])
    with sawlog.store.open(tmp_path / "rows") as reader:
        assert reader.gather(range(6))["row"][:, 0].tolist() == [0.0] * 3 + [1.0] * 3


def check_capture(first, second):
    """All examples of both processes, and none of the runs that were replaced."""
    error = EXAMPLES @ PARAMS["w"] + PARAMS["b"]
    inputs = np.concatenate([EXAMPLES, np.ones((12, 1), np.float32)], 1)
    rows = 2 * error[:, :, None] * inputs[:, None, :]
    assert first[0] == second[0]
    with sawlog.store.open(first[0]) as reader:
        assert sorted(reader.ids().tolist()) == list(range(12))
        np.testing.assert_allclose(reader.gather(range(12))["grad/w"], rows, rtol=1e-6)
    for path, moments, _ in (first, second):  # statistics are those of all examples
        np.testing.assert_allclose(moments, 4 * error.T @ error / 12, rtol=1e-6, err_msg=path)
    parts = np.concatenate([np.asarray(part) for each in (first, second) for part in each[2]])
    np.testing.assert_allclose(parts, np.swapaxes(rows, 1, 2)[:, :2], rtol=1e-6)


def check_loggers(folder, first, second):
    runs = ["seed-7", "seed-8", "seed-9"]
    assert first == {"memory": runs, "shown": True}
    assert second == {"memory": [], "shown": False}
    for kind in ("csv", "jsonl"):
        assert sorted(path.stem for path in (folder / kind).glob(f"*.{kind}")) == runs
    assert sorted(path.name for path in (folder / "save").iterdir()) == runs
    logs = sawlog.load(folder / "save" / "seed-7")
    assert np.asarray(logs["mean"]).tolist() == [3.5, 3.5, 4.5, 5.5, 3.5]
    assert logs["x"].shape == (3, 8)
    each = sorted(path.name for path in (folder / "each").iterdir())
    assert [name for name in each if name.endswith("-1")] == [
        "seed-7-process-1",
        "seed-9-process-1",
    ]
    assert [name for name in each if name.endswith("-0")] == [f"{run}-process-0" for run in runs]
    with sawlog.store.open(folder / "each" / "seed-7-process-1") as reader:
        assert reader.meta["process"] == 1
    for rank, parts in enumerate([[1.0, 5.0], [9.0, 13.0]]):
        logs = sawlog.load(folder / "shards" / f"seed-7-process-{rank}")
        assert sorted(np.asarray(logs["part"]).tolist()) == parts
