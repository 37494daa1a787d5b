"""Capture of a compiled model against capture of the same model as it is written.

The GPT of ``_torch_models``, rank 64, float32, one thread: CPU time of a batch once everything is
compiled and proven, rounds interleaved. Training is ``loss.backward()``; ``run.extract`` computes
only what logs need.

Run with --quick for fewer rounds.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _timing import Row, report
from _torch_models import CASES, RANK, Case
from rich.progress import track
from torch import nn

import sawlog.torch

BATCHES = 3


def trained(case: Case, model: nn.Module) -> Callable[[], None]:
    """Forward and backward, as in training."""

    def go() -> None:
        for batch in case.batches:
            case.loss(model, batch).backward()
            model.zero_grad(set_to_none=True)

    return go


def _run(case: Case, model: nn.Module, folder: Path, name: str) -> Any:
    run = sawlog.torch.Run(name, root=folder)
    run.setup(compress={"kind": "orthonormal", "rank": RANK})
    run.watch(model, list(case.layers), quiet=True)
    return run


def captured(case: Case, model: nn.Module, folder: Path, name: str) -> Callable[[], None]:
    """The same with every example logged."""
    run, ids = _run(case, model, folder, name), itertools.count()

    def go() -> None:
        for batch in case.batches:
            with run(data_id=[next(ids) for _ in batch[0]]):
                case.loss(model, batch).backward()
            model.zero_grad(set_to_none=True)

    return go


def extracted(case: Case, model: nn.Module, folder: Path, name: str) -> Callable[[], None]:
    """Every example logged by the steps of ``run.extract``, in one pass."""
    run, ids = _run(case, model, folder, name), itertools.count()

    def go() -> None:
        for batch in case.batches:
            with run(data_id=[next(ids) for _ in batch[0]]):
                run._watched_model().run_step(run._batch, case.loss, batch, len(batch[0]))

    return go


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--only", choices=list(CASES), default="GPT", help="one of the models")
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = CASES[args.only](BATCHES)
    compiled = torch.compile(copy.deepcopy(case.model))
    with tempfile.TemporaryDirectory(prefix="sawlog-bench-") as name:
        folder = Path(name)
        ways = {
            "plain": trained(case, case.model),
            "plain, compiled": trained(case, compiled),
            "training": captured(case, case.model, folder, "training"),
            "training, compiled": captured(case, compiled, folder, "training-compiled"),
            "extract": extracted(case, case.model, folder, "extract"),
            "extract, compiled": extracted(case, compiled, folder, "extract-compiled"),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for turn in track(range(-1, 5 if args.quick else 11), transient=True):
            for way in list(ways) if turn % 2 else list(ways)[::-1]:
                start = time.process_time()
                ways[way]()
                if turn >= 0:  # the first round compiles and proves
                    times[way].append((time.process_time() - start) / BATCHES)
    rows = [
        _ratio(args.only, times, "plain, compiled", "plain", None),
        _ratio(args.only, times, "training", "plain", None),
        _ratio(args.only, times, "training, compiled", "training", 1.0),
        _ratio(args.only, times, "extract, compiled", "extract", 1.0),
    ]
    sys.exit(0 if report(rows, "Capturing a compiled model, CPU time", args.save) else 1)


def _ratio(what: str, times: dict[str, list[float]], who: str, to: str, limit: float | None) -> Row:
    each = np.array(times[who]) / np.array(times[to])
    low, high = np.quantile(each, [0.1, 0.9])
    middle = float(np.median(times[who]))
    return Row(
        what, f"{who} / {to}", middle / float(np.median(times[to])), low, high, middle, limit
    )


if __name__ == "__main__":
    main()
