"""The values of ``loggers.py`` written by hand: with each tracker's own interface, or to a file."""

from __future__ import annotations

import csv
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 10_000
TRACKIO = {"embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
NEPTUNE = {
    "mode": "offline",
    "capture_stdout": False,
    "capture_stderr": False,
    "capture_hardware_metrics": False,
    "capture_traceback": False,
    "source_files": [],
    "git_ref": False,
}

Values = Mapping[str, list[float]]
#: Opens a run by hand, and returns what writes the values to it and closes it.
ByHand = Callable[[Path, str], Callable[[Values], Any]]


def rows_of(values: Values) -> Iterator[tuple[int, dict[str, float]]]:
    """The step and the numbers of each step, as a loop would have them."""
    for step, row in enumerate(zip(*values.values(), strict=True)):
        yield step, dict(zip(values, row, strict=True))


def _synced(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def by_numpy(folder: Path, name: str) -> Callable[[Values], Any]:
    """One file of arrays."""

    def write(values: Values) -> None:
        with open(folder / f"{name}.npz", "wb") as file:
            np.savez(file, step=np.arange(STEPS), **{k: np.float32(v) for k, v in values.items()})
            _synced(file)

    return write


def by_csv(folder: Path, name: str) -> Callable[[Values], Any]:
    """A row for each step."""
    file = open(folder / f"{name}.csv", "w", newline="")  # noqa: SIM115

    def write(values: Values) -> None:
        with file:
            writer = csv.DictWriter(file, ["step", *values])
            writer.writeheader()
            for step, row in rows_of(values):
                writer.writerow({"step": step, **row})
            _synced(file)

    return write


def by_json(folder: Path, name: str) -> Callable[[Values], Any]:
    """A line for each step."""
    file = open(folder / f"{name}.jsonl", "w")  # noqa: SIM115

    def write(values: Values) -> None:
        with file:
            for step, row in rows_of(values):
                file.write(json.dumps({"step": step, **row}) + "\n")
            _synced(file)

    return write


def by_memory(folder: Path, name: str) -> Callable[[Values], Any]:
    """A copy of the arrays."""
    kept: dict[str, Any] = {}
    return lambda values: kept.update({k: np.float32(v) for k, v in values.items()})


def by_tensorboard(folder: Path, name: str) -> Callable[[Values], Any]:
    """``add_scalar`` of torch, which is how TensorBoard is written to without TensorFlow."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder / name)

    def write(values: Values) -> None:
        for step, row in rows_of(values):
            for key, value in row.items():
                writer.add_scalar(key, value, step)
        writer.close()

    return write


def by_wandb(folder: Path, name: str) -> Callable[[Values], Any]:
    """A call of ``log`` for each step."""
    import wandb

    settings = wandb.Settings(console="off")
    run = wandb.init(
        project="by-hand", name=name, dir=folder, settings=settings, reinit="create_new"
    )

    def write(values: Values) -> None:
        for step, row in rows_of(values):
            run.log(row, step=step)
        run.finish()

    return write


def mlflow_uri(folder: Path) -> str:
    return f"sqlite:///{folder}/mlflow.db"


def by_mlflow(folder: Path, name: str) -> Callable[[Values], Any]:
    """``log_batch``, with as many metrics as it takes at a time."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client = MlflowClient(mlflow_uri(folder))
    experiment = client.get_experiment_by_name("by-hand")
    number = experiment.experiment_id if experiment else client.create_experiment("by-hand")
    run = client.create_run(number, run_name=name).info.run_id

    def write(values: Values) -> None:
        now = time.time_ns() // 1_000_000
        metrics = [Metric(k, v, now, step) for step, row in rows_of(values) for k, v in row.items()]
        for i in range(0, len(metrics), 1000):
            client.log_batch(run, metrics=metrics[i : i + 1000])
        client.set_terminated(run)

    return write


def by_trackio(folder: Path, name: str) -> Callable[[Values], Any]:
    """A call of ``log`` for each step."""
    import trackio

    run = trackio.init(project="by-hand", name=name, **TRACKIO)

    def write(values: Values) -> None:
        for step, row in rows_of(values):
            run.log(row, step=step)
        run.finish()

    return write


def by_neptune(folder: Path, name: str) -> Callable[[Values], Any]:
    """``extend``, for series that are there already."""
    import neptune

    run = neptune.init_run(project="by/hand", name=name, **NEPTUNE)

    def write(values: Values) -> None:
        for key, series in values.items():
            run[key].extend(series, steps=list(range(STEPS)))
        run.stop()

    return write


def by_all(*ways: ByHand) -> ByHand:
    """Several of these, one after the other."""

    def opened(folder: Path, name: str) -> Callable[[Values], Any]:
        writes = [way(folder, name) for way in ways]
        return lambda values: [write(values) for write in writes]

    return opened
