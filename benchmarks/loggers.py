"""What a logger costs, against the program without it and the tracker's own cost for the values.

Run it with ``make bench`` or ``python benchmarks/loggers.py [--quick] [--cpu] [--only NAME]``.

The program is a training scan of 10,000 steps that logs three numbers a step. In every round each
kind of logger does it with ``spool`` and with ``tap(buffer=100)``, beside the program without a
logger and the same values written by hand with the tracker's own interface, as its documentation
shows it for values that are there already. Each ends when its run is closed, so that on both sides
all is in its place; runs are opened before the clock starts, and everything is compiled before the
first round. Trackers write offline, to a folder that is removed at the end.

The last rows are a Python loop around a jitted step: until the last step is computed, with a logger
that keeps everything in memory and in a store, against the same loop without one.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import importlib.util
import io
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from _loggers_by_hand import (
    STEPS,
    ByHand,
    Values,
    by_all,
    by_csv,
    by_json,
    by_memory,
    by_mlflow,
    by_neptune,
    by_numpy,
    by_tensorboard,
    by_trackio,
    by_wandb,
    mlflow_uri,
)
from _timing import Row, report
from jax import lax
from rich.console import Console
from rich.progress import track

import sawlog
from sawlog import loggers

BUFFER = 100
SPOOL, TAP, LOOP = 1.1, 1.3, 1.1  # the marks
LOOP_STEPS, LOOP_BATCH = 1000, 512
SIZES, BATCH, POINTS = (64, 128, 128, 10), 64, 1024

#: Nothing goes to the network, and nothing to the user's own folders.
ENVIRONMENT = {
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
}
FOLDERS = (
    "WANDB_CONFIG_DIR",
    "WANDB_CACHE_DIR",
    "WANDB_DATA_DIR",
    "TRACKIO_DIR",
    "NEPTUNE_DATA_DIRECTORY",
)

Clock = Callable[[], float]


# -- the program -----------------------------------------------------------------------------------


def start(key: Any) -> Any:
    """The parameters of a small MLP."""
    keys = jax.random.split(key, len(SIZES))
    return [
        (jax.random.normal(k, (m, n)) / m**0.5, jnp.zeros(n))
        for k, m, n in zip(keys, SIZES, SIZES[1:], strict=False)
    ]


def train(params: Any) -> Any:
    """Many steps in one program."""
    return lax.scan(stepping(), (params, jnp.zeros(2)), jnp.arange(STEPS))[0]


def stepping(batch: int = BATCH) -> Callable[..., Any]:
    """A step of gradient descent with clipping, in minibatches, on points that a linear map labels.

    The program itself needs every number it logs, so that the compiler cannot leave their
    computation out where nobody listens: a logger is to be charged for logging, not for that.
    """
    points, labels = jax.random.split(jax.random.key(1))
    xs = jax.random.normal(points, (POINTS, SIZES[0]))
    ys = jnp.argmax(xs @ jax.random.normal(labels, (SIZES[0], SIZES[-1])), axis=1)

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        for weights, bias in params[:-1]:
            x = jnp.tanh(x @ weights + bias)
        scores = x @ params[-1][0] + params[-1][1]
        right = jnp.take_along_axis(jax.nn.log_softmax(scores), y[:, None], 1)
        return -jnp.mean(right), jnp.mean(jnp.argmax(scores, axis=1) == y)

    def body(state: Any, step: Any) -> Any:
        params, means = state
        at = (step * batch) % POINTS
        x, y = (lax.dynamic_slice_in_dim(each, at, batch) for each in (xs, ys))
        (loss, accuracy), grads = jax.value_and_grad(loss_of, has_aux=True)(params, x, y)
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
        sawlog.log({"loss": loss, "grad_norm": norm, "accuracy": accuracy}, step=step)
        rate = 0.01 / jnp.maximum(norm, 1.0)
        means = 0.99 * means + 0.01 * jnp.stack([loss, accuracy])
        return (jax.tree.map(lambda p, g: p - rate * g, params, grads), means), None

    return body


# -- the kinds of loggers --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of logger, how to make it, the same by hand, and the packages that this needs."""

    name: str
    make: Callable[[Path], loggers.Logger]
    by_hand: ByHand
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """What is not installed."""
        return [each for each in self.needs if importlib.util.find_spec(each) is None]


def _several(folder: Path) -> loggers.Logger:
    kinds = loggers.SaveLogger, loggers.JsonlLogger, loggers.TensorBoardLogger
    return loggers.MultiLogger(*(kind(folder / kind.__name__) for kind in kinds))


KINDS = (
    Kind("MemoryLogger", lambda _: loggers.MemoryLogger(), by_memory),
    Kind("SaveLogger", loggers.SaveLogger, by_numpy),
    Kind("CsvLogger", loggers.CsvLogger, by_csv),
    Kind("JsonlLogger", loggers.JsonlLogger, by_json),
    Kind("TensorBoardLogger", loggers.TensorBoardLogger, by_tensorboard, ("tensorboard", "torch")),
    Kind("WandbLogger", lambda at: loggers.WandbLogger("sawlog", dir=at), by_wandb, ("wandb",)),
    Kind(
        "MLflowLogger",
        lambda at: loggers.MLflowLogger("sawlog", tracking_uri=mlflow_uri(at)),
        by_mlflow,
        ("mlflow", "sqlalchemy"),
    ),
    Kind("TrackioLogger", lambda _: loggers.TrackioLogger("sawlog"), by_trackio, ("trackio",)),
    Kind("NeptuneLogger", lambda _: loggers.NeptuneLogger("saw/log"), by_neptune, ("neptune",)),
    Kind(
        "MultiLogger of Save, Jsonl and TensorBoard",
        _several,
        by_all(by_numpy, by_json, by_tensorboard),
        ("tensorboard", "torch"),
    ),
)


# -- the measurements ------------------------------------------------------------------------------

_seeds = itertools.count()


class Contest:
    """The four ways for one kind of logger. Each opens its run, and returns what to time."""

    def __init__(self, kind: Kind, folder: Path, params: Any, values: Values) -> None:
        self._by_hand, self._folder, self._params, self._values = (
            kind.by_hand,
            folder,
            params,
            values,
        )
        (folder / "by-hand").mkdir(parents=True)
        self._logger = logger = kind.make(folder)
        self._plain = jax.jit(train)
        # The run is an argument, so that one compiled program serves all of them.
        self._spool = jax.jit(lambda state, params: logger.spool(train, state)(params))
        self._tap = jax.jit(lambda state, params: logger.tap(train, state, buffer=BUFFER)(params))
        self.ways = {
            "program": self._program,
            "by hand": self._hand,
            "spool": lambda: self._logged(self._spool),
            f"tap(buffer={BUFFER})": lambda: self._logged(self._tap),
        }

    def _program(self) -> Callable[[], Any]:
        return lambda: jax.block_until_ready(self._plain(self._params))

    def _hand(self) -> Callable[[], Any]:
        write = self._by_hand(self._folder / "by-hand", f"run-{next(_seeds)}")
        return lambda: write(self._values)

    def _logged(self, program: Any) -> Callable[[], Any]:
        state = self._logger.init(next(_seeds), lr=0.01)

        def call() -> None:
            jax.block_until_ready(program(state, self._params))
            self._logger.finish(state)

        return call

    def round(self, forward: bool, clock: Clock = time.perf_counter) -> dict[str, float]:
        """The seconds of every way, in turn."""
        times = {}
        for name, opened in list(self.ways.items())[:: 1 if forward else -1]:
            with contextlib.redirect_stdout(io.StringIO()):  # Trackio tells of every run
                call = opened()
                gc.collect()
                begin = clock()
                call()
                times[name] = clock() - begin
        return times


def measure(
    kind: Kind, folder: Path, params: Any, values: Values, rounds: int, clock: Clock
) -> list[Row]:
    """Both ways of logging, as ratios to the program and the writing by hand in the same round."""
    if kind.missing:
        nan = float("nan")
        lacking = f"not measured: no {' and no '.join(kind.missing)}"
        return [Row(kind.name, lacking, nan, nan, nan, nan)]
    contest = Contest(kind, folder, params, values)
    contest.round(True)  # compiles, imports and makes databases
    console = Console(stderr=True)
    turns = track(range(rounds), description=kind.name, transient=True, console=console)
    times = [contest.round(turn % 2 == 1, clock) for turn in turns]
    base = [each["program"] + each["by hand"] for each in times]
    marks = {"by hand": None, "spool": SPOOL, f"tap(buffer={BUFFER})": TAP}
    return [_row(kind.name, who, [each[who] for each in times], base, marks[who]) for who in marks]


def _row(
    what: str,
    who: str,
    own: list[float],
    base: list[float],
    limit: float | None,
    against: str = "program + by hand",
) -> Row:
    ratios = sorted(a / b for a, b in zip(own, base, strict=True))
    tenth = len(ratios) // 10
    middle, seconds = statistics.median(ratios), statistics.median(own)
    return Row(
        what, f"{who} / {against}", middle, ratios[tenth], ratios[-1 - tenth], seconds, limit
    )


def measure_loop(folder: Path, params: Any, rounds: int, clock: Clock) -> list[Row]:
    """A Python loop around a jitted step, with a logger of each kind, as ratios to that without."""
    logger = loggers.MultiLogger(loggers.MemoryLogger(), loggers.SaveLogger(folder))
    step = jax.jit(stepping(LOOP_BATCH))
    plain = jax.jit(sawlog.strip(stepping(LOOP_BATCH)))
    begin = (params, jnp.zeros(2))

    def loop(call: Callable[..., Any]) -> Callable[[], Any]:
        def run() -> None:
            state = begin
            for i in range(LOOP_STEPS):
                state = call(state, i)[0]
            jax.block_until_ready(state)

        return run

    run = logger.init(0)

    def logging(state: Any, i: int) -> Any:
        out = plain(state, i)
        logger.log(run, {"mean": out[0][1]}, step=i)
        return out

    ways = {
        "without a logger": loop(plain),
        "logger.spool(step, run)(...)": loop(lambda *args: logger.spool(step, run)(*args)),
        "logger.log(run, ...)": loop(logging),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name in list(ways)[:: 1 if turn % 2 else -1]:
            gc.collect()
            start = clock()
            ways[name]()
            times[name].append(clock() - start)
            logger.flush()  # what is left belongs to this one, but writing it is no waiting
    logger.close()
    base = times.pop("without a logger")[1:]
    what = f"a Python loop of {LOOP_STEPS:,} steps"
    return [_row(what, name, own[1:], base, LOOP, "loop") for name, own in times.items()]


def compute(params: Any) -> dict[str, list[float]]:
    """What the program logs, as Python has numbers."""
    logs = jax.jit(sawlog.spool(train))(params)[1]
    return {name: np.asarray(logs[name]).tolist() for name in logs}


def prepare(folder: Path) -> None:
    """Keep the trackers off the network, in this folder, and quiet. Before they are imported."""
    os.environ.update(ENVIRONMENT, **{name: str(folder / name) for name in FOLDERS})
    warnings.simplefilter("ignore")  # those of the trackers
    for name in ("neptune", "mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def main() -> int:
    """Measure every kind and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="CPU time of this process instead of wall time, to look for causes on a busy machine; "
        "it does not count waiting, nor W&B's own process",
    )
    parser.add_argument("--only", help="the loggers whose names contain this")
    parser.add_argument("--save", type=Path, help="write the rows as JSON")
    options = parser.parse_args()
    chosen = [kind for kind in KINDS if (options.only or "").lower() in kind.name.lower()]
    rounds, clock = 5 if options.quick else 11, time.perf_counter
    if options.cpu:
        clock = time.process_time
    params, rows = start(jax.random.key(0)), []
    values = compute(params)
    with tempfile.TemporaryDirectory(prefix="sawlog-bench-") as place:
        prepare(Path(place))
        for kind in chosen:
            at = Path(place, kind.name.split()[0])
            rows += measure(kind, at, params, values, rounds, clock)
        if not options.only or options.only in "loop":
            rows += measure_loop(Path(place, "loop"), params, rounds, clock)
    title = f"Loggers: a training scan of {STEPS:,} steps" + ", CPU time" * options.cpu
    return 0 if report(rows, title, options.save) else 1


if __name__ == "__main__":
    sys.exit(main())
