"""A program that logs every example is killed in the middle, starts again, and loses nothing.

    python examples/resume_after_kill.py

A child process logs the gradient of every example of a small model, and kills itself with SIGKILL
after some batches: no handler runs, nothing is flushed. The same program is started again, skips
what is stored, and so on until it is done. Then the store is compared with that of a program that
was never killed: the same examples, once each, with the same rows.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss

import sawlog
import sawlog.store

BATCH = 20


def work(folder: Path, examples: int, batches: int) -> None:
    """Log the examples that are missing; die after some batches, as if the power had gone."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    x, y = torch.randn(examples, 8), torch.randn(examples, 1)
    run = sawlog.init(project="killed", root=folder, exists="append")
    run.setup(log="grad", statistic="kfac")
    run.watch(model, quiet=True)
    missing = torch.as_tensor(run.missing(range(examples)))
    print(f"  starts; {len(missing)} of {examples} examples are missing", flush=True)
    for done, ids in enumerate(missing.split(BATCH)):
        if done == batches:
            os.kill(os.getpid(), signal.SIGKILL)
        with run(data_id=ids):
            run.backward(mse_loss(model(x[ids]), y[ids]))
        run.flush()  # what was logged so far survives; without it, segments are written in between
    run.finalize()


def rows_of(folder: Path, examples: int) -> dict[str, np.ndarray]:
    """All rows of the run, in the order of their ids; each example must be there once."""
    (place,) = (folder / "killed" / "logs").iterdir()
    with sawlog.store.open(place) as reader:
        assert sorted(reader.ids().tolist()) == list(range(examples))
        return {name: np.asarray(rows) for name, rows in reader.gather(range(examples)).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the program until it finishes; return how often it was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=400)
    parser.add_argument("--batches", type=int, default=6, help="that a process lives for")
    parser.add_argument("--work", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.work is not None:
        work(options.work, options.examples, options.batches)
        return 0
    kills = 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--work", folder]
        command += ["--examples", str(options.examples), "--batches", str(options.batches)]
        while (code := subprocess.run(command).returncode) == -signal.SIGKILL:
            kills += 1
            print("  killed", flush=True)
        if code:
            raise SystemExit(code)
        killed = rows_of(Path(folder), options.examples)
    with tempfile.TemporaryDirectory() as folder:
        print("the same, never killed:", flush=True)
        work(Path(folder), options.examples, batches=-1)
        whole = rows_of(Path(folder), options.examples)
    assert killed.keys() == whole.keys()
    same = all(np.allclose(killed[name], whole[name], atol=1e-6) for name in whole)
    print(f"Killed {kills} times; the rows of {options.examples} examples are the same: {same}.")
    if not same:
        raise SystemExit("the rows differ")
    return kills


if __name__ == "__main__":
    main()
