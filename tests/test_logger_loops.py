"""A Python loop that logs: it does not wait for the device, and nothing is lost, late or mixed up.

What a device does is played by values whose computation waits until it is let go on.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.errors import LogValueError
from sawlog.jax._runs import background as _background
from sawlog.jax._runs.call_forms import Forms, one_entry
from sawlog.loggers import MemoryLogger, SaveLogger
from sawlog.sinks import MemorySink

from .sinks.failing import PATIENCE


class Device:
    """A device that computes what it is given when it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def later(self, value: Any) -> Any:
        """The value, once the device went on."""

        def wait(x: Any) -> Any:
            assert self.go.wait(PATIENCE)
            return x

        kind = jax.ShapeDtypeStruct((), jnp.float32)
        found: list[Any] = []
        compute = jax.jit(lambda x: jax.pure_callback(wait, kind, x))
        # JAX itself waits for programs with callbacks on a CPU, so another thread calls this one.
        thread = threading.Thread(target=lambda: found.append(compute(jnp.float32(value))))
        thread.start()
        return Late(thread, found)


class Late:
    """Stands for an array that is being computed, wherever only that is asked."""

    def __init__(self, thread: threading.Thread, found: list[Any]) -> None:
        self._thread, self._found = thread, found

    def is_ready(self) -> bool:
        return not self._thread.is_alive()

    def block_until_ready(self) -> Any:
        self._thread.join()
        return self._found[0]


class Job(_background.Job):
    """Writes a number to a list when its array is there."""

    def __init__(self, late: Late | None, number: int, written: list[int], nbytes: int = 0) -> None:
        self._late, self._number, self._written, self.nbytes = late, number, written, nbytes

    @property
    def on_device(self) -> bool:
        return self._late is not None

    def is_ready(self) -> bool:
        return self._late is None or self._late.is_ready()

    def wait(self) -> None:
        if self._late is not None:
            self._late.block_until_ready()

    def write(self, behind: Any) -> int:
        self._written.append(self._number)
        return 1


def test_jobs_are_done_in_order_when_the_device_is() -> None:
    background, device, written = _background.Background(), Device(), []
    late = device.later(1.0)
    for i in range(20):
        background.put(Job(late if i % 3 == 1 else None, i, written))
    background.write_ready()  # what a callback does meanwhile
    assert written in ([0], [])  # the first needs no device; the second waits for it
    assert not background.is_empty
    device.go.set()
    background.drain()
    assert written == list(range(20))
    assert background.is_empty


@pytest.mark.parametrize(("most", "nbytes"), [(4, 0), (100, _background.ROOM // 3)])
def test_the_line_is_bounded(most: int, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_background, "MOST", most)
    background, device, written = _background.Background(), Device(), []
    late, put = device.later(1.0), []

    def loop() -> None:
        for i in range(10):
            background.put(Job(late, i, written, nbytes))
            put.append(i)

    thread = threading.Thread(target=loop)
    thread.start()
    room = min(most, 3 if nbytes else most)
    end = time.monotonic() + PATIENCE
    while len(put) < room and time.monotonic() < end:
        time.sleep(0.001)
    thread.join(0.1)
    assert len(put) == room  # the next one waits
    background.put(Job(None, 99, written))  # as from a callback that the device waits for
    device.go.set()
    thread.join(PATIENCE)
    background.drain()
    assert [i for i in written if i != 99] == list(range(10))
    assert 99 in written


def test_the_thread_ends_and_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_background, "IDLE", 0.01)
    background, written = _background.Background(), []
    for i in range(3):
        background.put(Job(None, i, written))
        background.drain()
        thread = background._thread
        if thread is not None:
            thread.join(PATIENCE)
        assert background._thread is None
    assert written == [0, 1, 2]


@jax.jit
def step(x: Any, i: Any) -> Any:
    sawlog.log({"x": x, "net": {"w": 2 * x}}, step=i)
    jax.lax.cond(i % 3 == 0, lambda: sawlog.log({"third": x}, step=i), lambda: None)
    return x + 1


@pytest.mark.parametrize("way", ["spool", "tap", "log"])
def test_a_loop_of_steps(way: str, tmp_path: Any) -> None:
    """Many calls are written together, and load as if each had been written alone."""
    steps = 40
    memory = MemoryLogger()
    for logger in (memory, SaveLogger(tmp_path)):
        with logger:
            state, x = logger.init(0), jnp.float32(0)
            for i in range(steps):
                if way == "log":
                    logger.log(state, {"x": x, "net": {"w": 2 * x}}, step=i)
                    x = x + 1
                else:
                    x = getattr(logger, way)(step, state)(x, i)
            logger.log(state, {"last": x})
        assert x == steps
    logs = memory.runs["seed-0"].logs
    assert logs["x"].tolist() == list(range(steps))
    assert logs["net/w"].tolist() == [2 * i for i in range(steps)]
    assert logs["last"].tolist() == [steps]
    assert ("third" in logs) == (way != "log")
    if way != "log":
        assert logs["third"].tolist() == list(range(0, steps, 3))
    found = sawlog.load(tmp_path / "seed-0")
    assert found["net"]["w"].tolist() == logs["net/w"].tolist()
    assert found.step["x"].tolist() == list(range(steps))


def test_what_was_logged_may_be_changed_and_donated() -> None:
    with MemoryLogger() as logger:
        state = logger.init(0)
        donating = jax.jit(lambda x: x + 1, donate_argnums=0)
        x, y = jnp.zeros(3), np.zeros(3, np.float32)
        for _ in range(5):
            logger.log(state, {"x": x, "y": y})
            x = donating(x)
            y += 1
        logger.spool(lambda x: (sawlog.log({"given": x}), x[0])[1], state)(x)
        donating(x)
        logs = logger.runs["seed-0"].logs
    expected = [[i] * 3 for i in range(5)]
    assert logs["x"].tolist() == expected
    assert logs["y"].tolist() == expected
    assert logs["given"].tolist() == [[5, 5, 5]]


def test_programs_and_loops_write_to_one_run_in_turn() -> None:
    with MemoryLogger() as logger:
        state = logger.init(0)
        inside = jax.jit(lambda x: (logger.log(state, {"x": x}), x + 1)[1])
        x = jnp.float32(0)
        for _ in range(10):
            logger.log(state, {"x": x})
            x = inside(x + 1)
        logger.flush()
        assert logger.runs["seed-0"].logs["x"].tolist() == list(range(20))


VALUES: list[Any] = [
    *(
        1,
        -(2**31),
        True,
        0.5,
        float("nan"),
        float("inf"),
        np.int64(3),
        np.float64(0.1),
        np.bool_(1),
    ),
    *(np.float32(2), np.int32(2), np.uint8(2), np.arange(3, dtype=np.float32), np.arange(3)),
    *(np.ones((2, 2)), np.float16(1), {"b": 1.0, "a": np.int8(2)}, [1, None, 2.5], 2 + 1j),
    *(lambda: jnp.float32(1), lambda: {"x": jnp.ones(2), "y": 3}, lambda: jax.random.key(0)),
]


@pytest.mark.parametrize("steps", [{}, {"z": 1, "a": 2.5}, {"where": True}])
def test_what_is_logged_again_is_read_alike(steps: dict[str, Any]) -> None:
    """The second dict of a form is not checked again, and comes to what checking it would."""
    forms = Forms()
    for turn, value in itertools.product(range(3), VALUES):
        data = {"b": value() if callable(value) else value, "a": turn * 1.0}
        at = {**steps, "at": jnp.float32(turn)} if turn else dict(steps)
        expected = one_entry(data, dict(at))
        found = forms.read(data, dict(at)).logs
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True))
        assert all(one.dtype == two.dtype and type(one) is type(two) for one, two in pairs)
        numbers = [pair for pair in pairs if isinstance(pair[0].dtype, np.dtype)]
        assert all(np.array_equal(*pair, equal_nan=True) for pair in numbers)
    assert bool(forms._known) == ("where" not in steps)


def test_what_is_logged_again_with_64_bits() -> None:
    forms = Forms()
    for wide in (False, True, False):
        with jax.enable_x64(wide):
            for _ in range(2):
                logs = forms.read({"x": 0.1, "n": 3}, {}).logs
                assert (float(logs["x"]) == 0.1, logs["n"].dtype.itemsize) == (
                    wide,
                    8 if wide else 4,
                )


def test_what_is_logged_again_is_refused_alike() -> None:
    with MemoryLogger() as logger:
        state = logger.init(0)
        for fine, bad in [(1, 2**31), (1.0, 1e39), (np.int64(1), np.int64(2**40)), (1, "one")]:
            for _ in range(2):
                logger.log(state, {"x": fine}, step=fine)
                for data, step in [({"x": bad}, fine), ({"x": fine}, bad)]:
                    with pytest.raises(LogValueError, match="test_logger_loops"):
                        logger.log(state, data, step=step)
            logger.finish()
            state = logger.init(int(state.run))


class Picky(MemorySink):
    """Refuses 3."""

    def _write(self, records: Any) -> None:
        if 3 in records["x"].values:
            raise ValueError("no 3")
        super()._write(records)


class PickyLogger(MemoryLogger):
    def open_run(self, name: str, about: Any, exists: str) -> Any:
        self._runs[name] = Picky()
        return self._runs[name]


def test_only_what_is_refused_is_missing_and_it_is_said() -> None:
    logger = PickyLogger()
    state = logger.init(0)

    def loop() -> None:
        for i in range(8):
            logger.log(state, {"x": jnp.float32(i)})
        logger.flush()

    with pytest.raises(ValueError, match="no 3") as caught:
        loop()
    assert "in the background to the run 'seed-0'" in caught.value.__notes__[0]
    rest = logger.runs["seed-0"].logs["x"].tolist()
    assert rest == [i for i in range(len(rest) + 1) if i != 3]
    logger.close()


CALLS: dict[str, Any] = {
    "log": lambda logger, state, f: logger.log(state, {"x": jnp.float32(5)}),
    "log on the host": lambda logger, state, f: logger.log(state, {"x": 5.0}),
    "spool": lambda logger, state, f: logger.spool(f, state)(5.0),
    "tap": lambda logger, state, f: logger.tap(f, state)(5.0),
    "run": lambda logger, state, f: logger.run(f)(0),
    "flush": lambda logger, state, f: logger.flush(),
    "finish": lambda logger, state, f: logger.finish(state),
    "close": lambda logger, state, f: logger.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_raises_an_earlier_error_loses_nothing(call: str) -> None:
    """Either it was done, or it did nothing and can be repeated; its error says which."""
    logger, ran = PickyLogger(), []
    state = logger.init(0)

    def f(x: Any) -> Any:
        ran.append(x)
        sawlog.log({"x": jnp.float32(5)})
        return x

    logger.log(state, {"x": jnp.float32(3)})
    logger._background.drain()
    with pytest.raises(ValueError, match="no 3") as caught:
        CALLS[call](logger, state, f)
    said = " ".join(caught.value.__notes__)
    runs = call in ("spool", "tap", "run")
    assert ("ran nothing" in said) == runs
    assert ("logs of this call were taken" in said) == (call[:3] == "log")
    assert not ran
    if runs:
        CALLS[call](logger, state, f)
    if call not in ("finish", "close"):
        logger.flush()
    logs = logger.runs["seed-0"].logs
    assert logs == ({"x": [5]} if runs or call[:3] == "log" else {})
    logger.close()


def test_every_run_that_failed_is_named() -> None:
    logger = PickyLogger()
    for seed in range(3):
        logger.log(logger.init(seed), {"x": jnp.float32(3 + seed % 2)})
    with pytest.raises(ValueError, match="no 3") as caught:
        logger.flush()
    said = " ".join(caught.value.__notes__)
    assert "seed-0" in said
    assert "besides, ValueError: no 3 (sawlog: in the run 'seed-2')" in said
    logger.close()


def test_a_program_that_fails_on_the_device_is_reported() -> None:
    def fails(x: Any) -> Any:
        raise RuntimeError("boom")

    with MemoryLogger() as logger:
        state = logger.init(0)
        kind = jax.ShapeDtypeStruct((), jnp.float32)

        def f(x: Any) -> Any:
            sawlog.log({"x": jax.pure_callback(fails, kind, x)})
            return x

        def call() -> None:
            logger.spool(f, state)(1.0)
            logger.flush()

        with pytest.raises(Exception, match="boom"):
            call()
