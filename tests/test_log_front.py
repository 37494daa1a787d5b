"""``sawlog.log`` where JAX is not involved: to the sinks of the current run, or an error."""

import sys

import numpy as np
import pytest

import sawlog
from sawlog import _current_run
from sawlog.errors import ArgumentError, LogValueError
from sawlog.sinks import MemorySink

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def no_run(monkeypatch):
    monkeypatch.setattr(_current_run, "_current", None)


@pytest.fixture
def no_jax(monkeypatch):
    """A process that has not imported jax, as `sys.modules` shows it."""
    monkeypatch.delitem(sys.modules, "jax", raising=False)


def read(run):
    with sawlog.store.open(run.path / "metrics") as reader:
        return {n: (reader.read(n), reader.entries(n).steps) for n in reader.names}


@pytest.mark.parametrize("way", ["front", "method"])
def test_a_torch_loop_writes_to_the_store_of_its_run(tmp_path, no_jax, way):
    run = sawlog.init("run", root=tmp_path)
    assert not (run.path / "metrics").exists()  # nothing is opened before the first log
    log = sawlog.log if way == "front" else run.log
    losses = [2.5, 1.25, 0.5]
    for i, loss in enumerate(losses):
        tensor = torch.tensor(loss, requires_grad=True)
        own = {"loss": {"policy": tensor * 2, "value": loss}, "n": i, "norms": np.arange(2.0) + i}
        assert log(own, step=i) is None
        own["norms"][:] = -1.0  # the log holds a copy
    assert log("lr", torch.tensor(0.5, dtype=torch.bfloat16), step=7) is None
    log({"n": 9}, where=False)
    run.finalize()
    found = read(run)
    assert set(found) == {"loss/policy", "loss/value", "n", "norms", "lr"}
    assert found["loss/policy"][0].tolist() == [5.0, 2.5, 1.0]
    assert found["loss/policy"][0].dtype == np.float32
    assert found["loss/value"][0].tolist() == losses
    assert found["n"][0].tolist() == [0, 1, 2]
    assert found["norms"][0].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert found["loss/policy"][1]["step"].tolist() == [0, 1, 2]
    assert (found["lr"][0].tolist(), found["lr"][1]["step"].tolist()) == ([0.5], [7])
    log({"n": 3}, step=3)  # the store is opened again
    run.close()
    assert read(run)["n"][0].tolist() == [0, 1, 2, 3]
    again = sawlog.init("run", root=tmp_path, exists="replace")
    assert not (again.path / "metrics").exists()


def test_sinks_of_the_run_take_the_place_of_the_store(tmp_path, no_jax):
    one, two = MemorySink(), MemorySink()
    with sawlog.init("run", root=tmp_path, sinks=[one, two]) as run:
        sawlog.log({"x": 1.5}, step=0)
        run.finalize()
        sawlog.log({"x": 2.5}, step=1)
    assert one.logs["x"].tolist() == two.logs["x"].tolist() == [1.5, 2.5]
    assert not (run.path / "metrics").exists()
    with pytest.raises(ArgumentError, match=r"closed\. Hint"):
        run.log({"x": 1.0})


def test_without_a_run_it_says_what_to_do(no_jax):
    with pytest.raises(ArgumentError, match=r"sawlog\.init\(.*sink\.write"):
        sawlog.log({"loss": 1.0})


@pytest.mark.parametrize(
    ("args", "options", "error"),
    [
        (({"x": "text"},), {}, LogValueError),
        (({"x": object()},), {}, LogValueError),
        ((3.0,), {}, LogValueError),
        (("x",), {}, LogValueError),
        (({"a": {"b": 1}, "a/b": 2},), {}, LogValueError),
        (({"x": 1.0},), {"step": [1, 2]}, LogValueError),
        (({"x": 1.0},), {"tags": "t"}, ArgumentError),
    ],
)
def test_other_values_are_refused_and_nothing_is_written(tmp_path, no_jax, args, options, error):
    run = sawlog.init("run", root=tmp_path)
    with pytest.raises(error):
        run.log(*args, **options)
    run.close()
    assert not (run.path / "metrics").exists()


def test_in_a_jax_program_it_is_the_log_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    assert list(sawlog.log({"x": 1.0})) == ["x"]  # no run: what it always was

    @jax.jit
    def f(x):
        sawlog.log({"x": x})
        sawlog.log({"constant": 3})
        return x

    run = sawlog.init("run", root=tmp_path)
    _, logs = sawlog.spool(f)(2.0)
    assert (float(logs["x"]), int(logs["constant"])) == (2.0, 3)
    f(2.0)  # traced without a listener: no effect
    assert list(sawlog.log({"x": jax.numpy.ones(2)})) == ["x"]
    assert not (run.path / "metrics").exists()
    assert sawlog.log({"plain": 1.0}) is None  # a Python loop beside JAX, with a run
    run.close()
    assert read(run)["plain"][0].tolist() == [1.0]


def test_a_log_names_the_line_of_the_user():
    jax = pytest.importorskip("jax")
    with pytest.raises(LogValueError, match=r"test_log_front\.py"):
        jax.jit(lambda x: sawlog.log({"x": object()}))(1.0)


def test_strip_drops_logs_of_plain_numbers(tmp_path):
    run = sawlog.init("stripped", root=tmp_path)
    sawlog.strip(lambda: sawlog.log({"x": 1.0}, step=0))()
    run.log({"y": 2.0}, step=0)
    run.finalize()
    with sawlog.store.open(run.path / "metrics") as reader:
        assert [name for series in reader.schema.series for name in series.names] == ["y"]
