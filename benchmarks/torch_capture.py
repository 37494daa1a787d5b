"""Projected gradients of each example, captured and stored, against plain training and by hand.

An MLP 784-512-512-10 and a small GPT-2, rank 64, float32. Every way stores the same layers, begins
with an empty folder, and has everything synced to disk when its time ends. The time of sawlog and
of the capture by hand includes their set-up, that of peers does not; those that are not installed
are left out.

Run with --quick for the marks alone, in two rounds; --only measures one of the models.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import _torch_by_hand
import numpy as np
import torch
from _timing import Row, report, seconds_of
from _torch_models import CASES, RANK, Case
from _torch_peers import PEERS
from rich.progress import track

import sawlog
import sawlog.store
import sawlog.torch
from sawlog.factored import random_projection
from sawlog.torch._capture import _batch_capture
from sawlog.torch._loss import _grad_scaler, _loss_reader
from sawlog.torch._model import _fingerprint
from sawlog.torch._proof import _plan

Way = Callable[[Case, Path], None]
MODELS = ("MLP", "GPT")  # that every way is measured on


# -- ways of doing it -----------------------------------------------------------------------------


def plain(case: Case, folder: Path) -> None:
    """Forward and backward, as in training."""
    for batch in case.batches:
        case.loss(case.model, batch).backward()
        case.model.zero_grad(set_to_none=True)


def by_hand(case: Case, folder: Path) -> None:
    """With the very projections of sawlog, so that the numbers can be compared."""

    def matrix(name: str, side: str, size: int) -> torch.Tensor:
        inputs = "right" if isinstance(case.layers[name], torch.nn.Linear) else "left"
        other = {"left": "right", "right": "left"}[inputs]
        name = f"{name}.weight/{inputs if side == 'input' else other}"
        rank = min(RANK, size)
        return torch.from_numpy(random_projection("orthonormal", size, rank, seed=0, name=name))

    _torch_by_hand.capture(case, folder / "rows", matrix)


def with_sawlog(
    case: Case,
    folder: Path,
    *,
    statistic: tuple[str, ...] = (),
    all_layers: bool = False,
    trained: bool = False,
) -> None:
    """One ``with`` around each batch; ``trained`` computes the gradients of the weights too."""
    run = sawlog.torch.Run("run", root=folder)
    run.setup(compress={"kind": "orthonormal", "rank": RANK}, statistic=statistic)
    run.watch(case.model, None if all_layers else list(case.layers), quiet=True)
    start = 0
    for batch in case.batches:
        stop = start + len(batch[0])
        with run(data_id=np.arange(start, stop)):
            loss = case.loss(case.model, batch)
            if trained:
                loss.backward()
            else:
                run.backward(loss)
        if trained:
            case.model.zero_grad(set_to_none=True)
        start = stop
    run.finalize()


OURS: dict[str, Way] = {
    "plain": plain,
    "by hand": by_hand,
    "sawlog": with_sawlog,
    "sawlog, K-FAC": functools.partial(with_sawlog, statistic=("kfac",)),
    "sawlog, loss.backward()": functools.partial(with_sawlog, trained=True),
    "sawlog, all layers": functools.partial(with_sawlog, all_layers=True),
}
MARKED = ("plain", "by hand", "sawlog", "sawlog, K-FAC")  # that marks are about


# -- whether the numbers are right ----------------------------------------------------------------


def check(case: Case, folder: Path) -> float:
    """See that stored rows are those of autograd for a few examples, and those by hand for all.

    Returns the bytes of an example on disk.
    """
    for name in ("sawlog", "by hand"):
        _empty(folder / name)
        OURS[name](case, folder / name)
    (logs,) = (folder / "sawlog" / "run" / "logs").glob("*")
    with sawlog.store.open(logs) as reader:
        stored = reader.gather(np.arange(case.examples))
    rows = [stored[f"grad/{name}.weight"].reshape(case.examples, -1) for name in case.layers]
    hand = np.fromfile(folder / "by hand" / "rows", np.float32).reshape(case.examples, -1)
    _same(np.concatenate(rows, axis=1), hand, "those by hand")
    for i in (0, 1, len(case.batches[0][0]) - 1):
        inputs, targets = case.batches[0]
        loss = case.loss(case.model, (inputs[i : i + 1], targets[i : i + 1]))
        for name, layer in case.layers.items():
            grads = torch.autograd.grad(loss, [layer.weight, layer.bias], retain_graph=True)
            linear = isinstance(layer, torch.nn.Linear)
            whole = torch.cat(
                [grads[0], grads[1][:, None] if linear else grads[1][None]], int(linear)
            )
            for axis, side in ((0, "left"), (1, "right")):
                size = whole.shape[axis]
                if size > RANK:
                    key = f"{name}.weight/{side}"
                    matrix = random_projection("orthonormal", size, RANK, seed=0, name=key)
                    whole = torch.tensordot(whole, torch.from_numpy(matrix), ([axis], [0]))
                    whole = whole.movedim(-1, axis)
            _same(stored[f"grad/{name}.weight"][i], whole.numpy(), f"autograd, {name}, example {i}")
    files = [path for path in logs.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files) / case.examples


def _same(ours: np.ndarray, right: np.ndarray, what: str) -> None:
    error = float(np.abs(ours - right).max() / np.abs(right).max())
    assert error < 1e-4, f"The stored gradients are not those of {what}: off by {error:.2g}"


# -- time, memory, bytes --------------------------------------------------------------------------


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _ready(name: str, case: Case, folder: Path) -> Callable[[], None]:
    if name in OURS:
        return functools.partial(OURS[name], case, folder)
    return PEERS[name](case, folder)


def times_of(case: Case, names: list[str], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of every way in every round; a way that fails is left out."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in track(range(-1, rounds), description=case.name, transient=True):
        for name in list(times) if turn % 2 else list(times)[::-1]:
            _empty(folder / "now")
            os.sync()  # what the one before left unwritten is not ours to pay for
            try:
                seconds = seconds_of(_ready(name, case, folder / "now"))
            except Exception as error:
                if name in OURS:
                    raise
                print(f"{name} failed on the {case.name} and is left out: {error}", file=sys.stderr)
                del times[name]
                continue
            if turn >= 0:  # the first round finds the memory cold
                times[name].append(seconds)
    _empty(folder / "now")
    return times


def ratio(what: str, times: dict[str, list[float]], who: str, to: str, limit: float | None) -> Row:
    """The ratio of the medians; the spread is that of rounds."""
    each = np.array(times[who]) / np.array(times[to])
    middle, base = np.median(times[who]), np.median(times[to])
    low, high = np.quantile(each, [0.1, 0.9])
    return Row(what, f"{who} / {to}", middle / base, low, high, middle, limit)


def peak(case: str, way: str, batches: int) -> float:
    """Peak resident MB of a fresh process."""
    command = [sys.executable, __file__, "--alone", case, way, str(batches)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(found.stdout.splitlines()[-1]))


def alone(case: str, way: str, batches: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        _ready(way, CASES[case](int(batches)), Path(name))()
    # Not getrusage: its ru_maxrss starts from that of the process which started this one.
    status = Path("/proc/self/status").read_text().splitlines()
    (most,) = (line.split()[1] for line in status if line.startswith("VmHWM:"))
    print(json.dumps(int(most) * 1024 / 1e6))


def measure(case: Case, folder: Path, rounds: int, ways: list[str]) -> list[Row]:
    if case.name not in MODELS:
        return [accounts(case, folder, rounds)]
    size = check(case, folder)
    times = times_of(case, ways, folder, rounds)
    mlp = case.name == "MLP"
    limits = {} if mlp else {"sawlog": 1.0}
    rows = [
        ratio(case.name, times, who, "plain", limits.get(who)) for who in times if who != "plain"
    ]
    rows.append(ratio(case.name, times, "sawlog", "by hand", 1.2 if mlp else None))
    rows.append(ratio(case.name, times, "sawlog, K-FAC", "sawlog", 1.5))
    rows.append(accounts(case, folder, rounds))
    rows += first_and_later(case, folder, max(rounds, 5))
    need = 4 * case.values
    rows.append(_single(case.name, "bytes of an example / those of its values", size / need, 1.01))
    batches = len(case.batches)
    least = peak(case.name, "plain", batches)
    for who in times if ways != list(MARKED) else ("sawlog",):
        if who != "plain":
            more = peak(case.name, who, batches) - least
            limit = 300.0 if who.startswith("sawlog") else None
            rows.append(_single(case.name, f"peak memory, {who} - plain, MB", more, limit))
    return rows


# -- what the accounts take -----------------------------------------------------------------------

ACCOUNTS = (  # what is looked at on every batch, before and beside the capture itself
    (_batch_capture, "graph_of"),
    (_batch_capture, "values_at"),
    (_loss_reader.LossReader, "scale"),
    (_plan.Plan, "holds_for"),
    (_grad_scaler.ScaledLosses, "factor_of"),
    (_fingerprint.Fingerprint, "changed"),
)


@contextlib.contextmanager
def counted() -> Iterator[list[float]]:
    """CPU seconds of the accounts, one number for each call."""
    spent: list[float] = []

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def inside(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                spent.append(time.thread_time() - start)

        return inside

    before = [(owner, name, getattr(owner, name)) for owner, name in ACCOUNTS]
    for owner, name, call in before:
        setattr(owner, name, timed(call))
    try:
        yield spent
    finally:
        for owner, name, call in before:
            setattr(owner, name, call)


def accounts(case: Case, folder: Path, rounds: int) -> Row:
    """CPU time of the accounts on batches of a known structure, relative to plain training."""
    _empty(folder / "now")
    run = sawlog.torch.Run("run", root=folder / "now")
    run.setup(compress={"kind": "orthonormal", "rank": RANK})
    run.watch(case.model, list(case.layers), quiet=True)
    ids = itertools.count()

    def captured() -> None:
        for batch in case.batches:
            with run(data_id=[next(ids) for _ in batch[0]]):
                case.loss(case.model, batch).backward()
            case.model.zero_grad(set_to_none=True)

    captured()  # proves the structure
    ratios, every = [], []
    for _ in range(rounds):
        start = time.process_time()
        plain(case, folder)
        base = time.process_time() - start
        with counted() as spent:
            captured()
        every.append(sum(spent) / len(case.batches))
        ratios.append(sum(spent) / base)
    run.finalize()
    _empty(folder / "now")
    low, high = np.quantile(ratios, [0.1, 0.9])
    who = "accounts / plain, CPU time"
    return Row(case.name, who, float(np.median(ratios)), low, high, float(np.median(every)), 0.02)


# -- what the first batch of a pass takes ----------------------------------------------------------


def first_and_later(case: Case, folder: Path, rounds: int) -> list[Row]:
    """The first batch of a pass, which is proven and replayed, and those after it."""
    firsts, laters, bases = [], [], []
    for _ in range(rounds):
        _empty(folder / "now")
        bases += [_seconds(plain, dataclasses.replace(case, batches=case.batches[:1]), folder)]
        run = sawlog.torch.Run("run", root=folder / "now")
        run.setup(compress={"kind": "orthonormal", "rank": RANK})
        run.watch(case.model, list(case.layers), quiet=True)
        times = []
        for number, batch in enumerate(case.batches):
            start = time.perf_counter()
            with run(data_id=[f"{number}-{i}" for i in range(len(batch[0]))]):
                run.backward(case.loss(case.model, batch))
            times.append(time.perf_counter() - start)
        run.finalize()
        firsts.append(times[0])
        laters.append(float(np.median(times[1:])))
    _empty(folder / "now")
    first, later, base = (float(np.median(each)) for each in (firsts, laters, bases))
    return [
        Row(case.name, "a batch, plain", 1.0, 1.0, 1.0, base, None),
        _relative(case.name, "sawlog, first batch / a batch, plain", firsts, base, first),
        _relative(
            case.name, "sawlog, batches after the first / a batch, plain", laters, base, later
        ),
    ]


def _seconds(way: Way, case: Case, folder: Path) -> float:
    start = time.perf_counter()
    way(case, folder)
    return time.perf_counter() - start


def _relative(what: str, who: str, times: list[float], base: float, seconds: float) -> Row:
    low, high = np.quantile(times, [0.1, 0.9])
    return Row(what, who, seconds / base, low / base, high / base, seconds, None)


def _single(what: str, who: str, value: float, limit: float | None) -> Row:
    return Row(what, who, value, value, value, 0.0, limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only what marks are about")
    parser.add_argument("--no-peers", action="store_true", help="only sawlog, plain and by hand")
    parser.add_argument("--only", choices=list(CASES), help="one of the models")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        alone(*args.alone)
        return
    rows = []
    ways = list(MARKED) if args.quick else [*OURS, *(() if args.no_peers else PEERS)]
    for name, make in CASES.items():
        if args.only in (None, name):
            batches, rounds = {"MLP": (24, 15), "GPT": (12, 9), "deep": (6, 9)}[name]
            if args.quick:
                rounds = 2  # of as many batches: the first one, which is proven, takes a share
            with tempfile.TemporaryDirectory(dir=args.folder, prefix="sawlog-bench-") as folder:
                own = measure(make(batches), Path(folder), rounds, ways)
                for row in own:  # at once: what is measured is known if a later one is stopped
                    print(f"{row.what}: {row.who}: {row.ratio:.3f}", file=sys.stderr, flush=True)
                rows += own
    title = f"Capturing projected gradients, rank {RANK}; times relative to another way"
    sys.exit(0 if report(rows, title, args.save) else 1)


if __name__ == "__main__":
    main()
