"""Loggers when something goes wrong: in the program, or where the logs go."""

import os
import signal
import subprocess
import sys
import textwrap
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sawlog
from sawlog.errors import AppendWarning, ArgumentError, MissingPackageError, SinkWarning
from sawlog.loggers import Logger, MemoryLogger, MultiLogger, SaveLogger, WandbLogger
from sawlog.sinks import Async, BaseSink, Fanout, MemorySink, Prefix

SEEDS, STEPS = 4, 30


class Ends(MemorySink):
    """Remembers how it ended."""

    ended = None

    def _close(self):
        self.ended = "failed" if self.failed else "finished"


class EndsLogger(MemoryLogger):
    def open_run(self, name, about, exists):
        self.runs[name] = Ends()
        return self.runs[name]

    @property
    def ends(self):
        return {name: sink.ended for name, sink in self.runs.items()}


class Breaks(MemorySink):
    """Takes some writes, and then fails like a tracker without a network."""

    def __init__(self, writes, when="write"):
        super().__init__()
        self.left, self.when = writes, when
        self.ended = None

    def _write(self, records):
        self.left -= 1
        if self.when == "write" and self.left < 0:
            raise ConnectionError("no network")
        super()._write(records)

    def _flush(self):
        if self.when == "flush":
            raise ConnectionError("no network")

    def _close(self):
        self.ended = "failed" if self.failed else "finished"
        if self.when == "close":
            raise ConnectionError("no network")


class BreaksLogger(Logger):
    def __init__(self, writes=1, when="write", which=lambda name: True, **options):
        super().__init__(**options)
        self.sinks, self._writes, self._when, self._which = {}, writes, when, which

    def open_run(self, name, about, exists):
        writes = self._writes if self._which(name) else 10**9
        self.sinks[name] = Breaks(writes, self._when if self._which(name) else "")
        return self.sinks[name]


def train(seed):
    def step(x, i):
        x = x + jax.random.normal(jax.random.fold_in(jax.random.key(seed), i))
        sawlog.log({"x": x}, step=i)
        return x, None

    return jax.lax.scan(step, 0.0, jnp.arange(STEPS))[0]


def values(seed):
    return np.asarray(sawlog.spool(train)(seed)[1]["x"])


# -- a program that raises ------------------------------------------------------------------------


def boom(x):
    sawlog.log({"x": x})
    raise RuntimeError("boom")


@pytest.mark.parametrize("way", ["spool", "tap"])
def test_a_program_that_raises_fails_its_run(way):
    logger = EndsLogger()
    good, bad, mended = logger.init(0), logger.init(1), logger.init(2)
    getattr(logger, way)(train, good)(0)
    for state in (bad, mended):
        with pytest.raises(RuntimeError, match="boom"):
            getattr(logger, way)(boom, state)(1.0)
    getattr(logger, way)(train, mended)(0)
    logger.finish()
    assert logger.ends == {"seed-0": "finished", "seed-1": "failed", "seed-2": "finished"}


def test_leaving_the_with_by_an_error_fails_open_runs():
    logger = EndsLogger()

    def program():
        with logger:
            logger.finish(logger.init(0))
            many = jax.vmap(lambda seed: logger.spool(train, logger.init(seed))(seed))
            jax.jit(many)(jnp.arange(1, 3))
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        program()
    assert logger.ends == {"seed-0": "finished", "seed-1": "failed", "seed-2": "failed"}


def test_every_sink_inside_is_told():
    ends = [Ends(), Ends(), Ends()]

    class Plain:
        def write(self, records):
            """A sink that knows nothing of failing."""

        flush = close = lambda self: None

    sink = Fanout(Prefix(ends[0], "a/"), Async(ends[1]), Fanout(ends[2], Plain()))
    with pytest.raises(RuntimeError), sink:
        raise RuntimeError("boom")
    assert [each.ended for each in ends] == ["failed"] * 3


def test_a_store_notes_that_its_program_failed(tmp_path):
    def program():
        with SaveLogger(tmp_path) as logger:
            logger.log(logger.init(1), {"x": 1.0})
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        program()
    with sawlog.store.open(tmp_path / "seed-1") as reader:
        assert reader.failed
    with pytest.warns(AppendWarning), SaveLogger(tmp_path) as logger:
        logger.log(logger.init(1), {"x": 1.0})
    with sawlog.store.open(tmp_path / "seed-1") as reader:
        assert not reader.failed


@pytest.mark.parametrize(
    "how", ["raise RuntimeError('boom')", pytest.param("pass", marks=pytest.mark.thorough)]
)
def test_the_end_of_the_program(tmp_path, how):
    program = f"""
        import jax, jax.numpy as jnp, sawlog
        from sawlog.loggers import MultiLogger, SaveLogger
        logger = MultiLogger(SaveLogger({str(tmp_path)!r}))
        jax.jit(jax.vmap(lambda s: logger.log(logger.init(s), {{"x": s}})))(jnp.arange(2))
        {how}
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True
    )
    assert ("boom" in ended.stderr) == ("boom" in how)
    for seed in range(2):
        with sawlog.store.open(tmp_path / f"seed-{seed}") as reader:
            assert reader.failed == ("boom" in how)
            assert reader.read("x").tolist() == [seed]


# -- a place that fails ---------------------------------------------------------------------------


def run_all(logger, way):
    def run(seed):
        options = {"buffer": 7} if way == "buffered tap" else {}
        wrap = logger.spool if way == "spool" else logger.tap
        return wrap(train, logger.init(seed), **options)(seed)

    jax.block_until_ready(jax.jit(jax.vmap(run))(jnp.arange(SEEDS)))
    jax.effects_barrier()


def messages(caught):
    assert all(issubclass(each.category, SinkWarning) for each in caught)
    return [str(each.message) for each in caught]


@pytest.mark.turns(2)
@pytest.mark.parametrize("when", ["write", "flush", "close"])
@pytest.mark.parametrize("way", ["spool", "tap", "buffered tap"])
def test_the_program_goes_on_and_nothing_is_lost(tmp_path, way, when):
    writes = 0 if way == "spool" else 2
    logger = BreaksLogger(writes, when, on_error="fallback", fallback=tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_all(logger, way)
        if when == "write":  # once while it runs, whatever the number of seeds
            (said,) = messages(caught)
            assert "no network" in said
            assert str(tmp_path) in said
            assert "continues" in said
        if when == "flush":
            logger.flush()
        caught.clear()
        logger.finish()
        said = messages(caught)[-1]
    for seed in range(SEEDS):
        assert f"BreaksLogger/seed-{seed}" in said
        spare = sawlog.load(tmp_path / "BreaksLogger" / f"seed-{seed}")
        assert np.array_equal(spare["x"], values(seed))
        assert np.array_equal(spare.step["x"], np.arange(STEPS))
        if when != "close":
            assert logger.sinks[f"seed-{seed}"].ended == "failed"


def test_only_what_failed_goes_elsewhere(tmp_path):
    memory = MemoryLogger()
    breaks = BreaksLogger(
        2, which=lambda name: name == "seed-2", on_error="fallback", fallback=tmp_path
    )
    several = MultiLogger(memory, breaks)
    with pytest.warns(SinkWarning, match="continues"):
        run_all(several, "tap")
    with pytest.warns(SinkWarning, match="1 of its runs failed"):
        several.finish()
    assert os.listdir(tmp_path / "BreaksLogger") == ["seed-2"]
    for seed in range(SEEDS):
        assert np.array_equal(memory.runs[f"seed-{seed}"].logs["x"], values(seed))
        own = breaks.sinks[f"seed-{seed}"]
        assert np.array_equal(own.logs["x"], values(seed)[: 2 if seed == 2 else STEPS])
        assert own.ended == ("failed" if seed == 2 else "finished")
    spare = sawlog.load(tmp_path / "BreaksLogger" / "seed-2")
    assert np.array_equal(spare["x"], values(2))


def test_a_second_failure_takes_another_folder(tmp_path):
    for expected in ("seed-0", "seed-0-2"):
        logger = BreaksLogger(0, on_error="fallback", fallback=tmp_path)
        state = logger.init(0)
        with pytest.warns(SinkWarning, match=expected):
            logger.log(state, {"x": 1.0})
        with pytest.warns(SinkWarning, match=expected):
            logger.finish()
    assert sorted(os.listdir(tmp_path / "BreaksLogger")) == ["seed-0", "seed-0-2"]


def test_raising_instead():
    logger = BreaksLogger(2, on_error="raise")
    logger.tap(train, logger.init(0))(0)
    with pytest.raises(ConnectionError, match="no network"):
        logger.finish()
    logger.finish()
    assert logger.sinks["seed-0"].ended == "failed"


def test_what_is_kept_in_memory_is_bounded(tmp_path):
    flushes = []

    class Counts(MemorySink):
        def _flush(self):
            flushes.append(len(self.logs["x"]))

        def _close(self):
            raise ConnectionError("no network")

    sink = sawlog.sinks.Fallback(
        Counts(), tmp_path / "spare", keep=10_000, report=lambda text: None
    )
    for i in range(100):
        entries = sawlog.records.Entries(np.full(100, i), {"step": np.arange(100)})
        sink.write(sawlog.records.Records({"x": entries}))
    sink.close()
    spare = sawlog.load(tmp_path / "spare")["x"]
    assert len(flushes) > 10
    assert len(spare) <= 1000
    assert np.array_equal(spare, np.repeat(np.arange(100), 100)[-len(spare) :])


def test_both_fail(tmp_path):
    (tmp_path / "file").write_text("in the way")
    sink = sawlog.sinks.Fallback(Breaks(0), tmp_path / "file" / "spare")
    with pytest.raises(OSError, match="file") as caught:
        sink.write(sawlog.records.Records({"x": sawlog.records.Entries(np.ones(1))}))
    assert "no network" in "".join(caught.value.__notes__)


def test_bad_options():
    with pytest.raises(ArgumentError, match="`on_error` must be one of 'raise', 'fallback'"):
        BreaksLogger(on_error="ignore")


def test_a_missing_tracker_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackageError, match=r'WandbLogger needs .*wandb.*"sawlog\[wandb\]"'):
        WandbLogger("project")


@pytest.mark.thorough
def test_wandb_killed_in_the_middle(tmp_path):
    """The process of W&B is killed: the program goes on, and every value is in the store."""
    program = f"""
        import os, pathlib, signal, sys, time, warnings
        import jax, sawlog, jax.numpy as jnp
        from sawlog.errors import SinkWarning
        from sawlog.loggers import WandbLogger
        logger = WandbLogger("p", mode="offline", dir={str(tmp_path)!r}, fallback={str(tmp_path)!r})

        def train(x):
            def step(x, i):
                sawlog.log({{"x": x}}, step=i)
                return x + 1, None
            return jax.lax.scan(step, x, jnp.arange(50))[0]

        state = logger.init(3)
        x = logger.tap(train, state, buffer=10)(0.0)
        for file in pathlib.Path("/proc").glob("[0-9]*/stat"):
            name, parent = file.read_text().split("(")[1].split(")")
            if int(parent.split()[1]) == os.getpid() and "wandb" in name:
                os.kill(int(file.parent.name), signal.SIGKILL)
                os.waitpid(int(file.parent.name), 0)
        time.sleep(0.2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            x = logger.tap(train, state, buffer=10)(x)
            logger.finish()
        assert x == 100.0
        print([str(each.message) for each in caught if each.category is SinkWarning])
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)  # what W&B itself does at the end is not our affair
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}  # a W&B of its own
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, env=own
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    said = ended.stdout + ended.stderr  # the first one may come before the second call
    assert said.count("WandbSink(project='p', name='seed-3') failed") == 2
    spare = sawlog.load(tmp_path / "WandbLogger" / "seed-3")
    assert np.array_equal(spare["x"], np.arange(100.0))


def test_the_base_class_is_not_a_place():
    with pytest.raises(NotImplementedError):
        Logger().init(0)
    assert issubclass(MemorySink, BaseSink)
