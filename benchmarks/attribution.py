"""Attribution: how well scores foretell retraining, and how fast they are, in one run.

The linear datamodeling score on digits: 1,000 training images of which 10 % have a wrong label, a
64-64-32-10 MLP, 100 random halves retrained over 20 seeds, 200 test images. Every method runs with
its default options. Then query-train pairs a second from disk against the bare matrix product over
a memory map, and examples a second of fitting EK-FAC. --large scores a million rows.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from _lds import Data, Settings, Truth, ceiling, data_of, lds_both, model_of, truth_of
from _timing import Contestant, Row, compare, report, seconds_of
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import sawlog
import sawlog.store
import sawlog.torch
from sawlog.influence import Scores, attribute, ensemble

# -- the linear datamodeling score ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Method:
    """How gradients are compressed, preconditioned and compared; the marks of its scores."""

    name: str
    curvature: str
    compress: str = "none"
    mode: str = "dot"
    one: float | None = None
    several: float | None = None
    slow: bool = False


METHODS = (
    Method("gradient dot product", "identity"),
    Method("gradient cosine", "identity", mode="cosine"),
    Method("diagonal Fisher", "diagonal"),
    Method("Fisher, whole gradients", "fisher", slow=True),
    Method("Shampoo", "shampoo"),
    Method("K-FAC", "kfac"),
    Method("EK-FAC", "ekfac", one=0.72, several=0.77),
    Method("LoGra rank 16, random, Fisher", "fisher", "random", one=0.68),
    Method("LoGra rank 16, random, EK-FAC", "ekfac", "random", one=0.68),
    Method("LoGra rank 16, PCA, Fisher", "fisher", "pca", one=0.68),
    Method("LoGra rank 16, PCA, EK-FAC", "ekfac", "pca", one=0.68),
    Method("exact Gauss-Newton", "gauss-newton", one=0.69, several=0.80),
)

COMPRESS: dict[str, Any] = {
    "none": None,
    "random": {"rank": 16},
    "pca": {"kind": "pca", "rank": 16},
}


@dataclasses.dataclass(frozen=True)
class Logged:
    """The gradients of training images, on disk, and those of test images."""

    train: Path
    test: Any


def logged(model: nn.Module, data: Data, run: sawlog.torch.Run, compress: str) -> Logged:
    """Log both, as a user would."""
    run.setup(statistic="kfac", compress=COMPRESS[compress])
    run.watch(model, quiet=True)
    batches = zip(data.x.split(250), data.y.split(250), strict=True)
    for ids, (x, y) in run.batches(list(batches), quiet=True):
        with run(data_id=ids):
            run.backward(F.cross_entropy(model(x), y))
    run.eval()
    with run(data_id=np.arange(len(data.test_x))):
        run.backward(F.cross_entropy(model(data.test_x), data.test_y))
    return Logged(run.logs, run.get_log())


def scores_of(
    model: nn.Module, data: Data, methods: list[Method], folder: Path
) -> dict[str, tuple[Scores, float]]:
    """What each method finds for one checkpoint, and the seconds it took from the logs on."""
    run = sawlog.torch.Run("lds", root=folder)
    logs = {name: logged(model, data, run, name) for name in COMPRESS}
    run.setup()
    found = {}
    for method in methods:
        start = time.perf_counter()
        curvature: Any = method.curvature
        if curvature == "gauss-newton":
            curvature = sawlog.torch.gauss_newton(run, data.x.split(250), "cross_entropy")
        own = logs[method.compress]
        scores = attribute(own.train, own.test, curvature=curvature, mode=method.mode)
        found[method.name] = (scores, time.perf_counter() - start)
    return found


def checkpoint(settings: Settings, data: Data, truth: Truth, place: int) -> nn.Module:
    return model_of(settings, data, [p[place] for p in truth.checkpoints]).eval()


@dataclasses.dataclass(frozen=True)
class Result:
    """The scores of a method: of one checkpoint, of the mean of several; by the margin, too."""

    method: str
    one: float
    spread: tuple[float, float]
    several: float
    margin: float
    checkpoints: int
    seconds: float
    marks: tuple[float | None, float | None]

    @property
    def holds(self) -> list[bool]:
        pairs = zip((self.one, self.several), self.marks, strict=True)
        return [value >= mark for value, mark in pairs if mark is not None]


def datamodeling(settings: Settings, methods: list[Method]) -> tuple[list[Result], float]:
    """All methods on one draw, and what noise leaves to be had."""
    data, truth = data_of(settings), truth_of(settings)
    found: dict[str, list[Scores]] = {method.name: [] for method in methods}
    seconds: dict[str, list[float]] = {method.name: [] for method in methods}
    places = range(settings.checkpoints)
    for place in track(places, "attributing checkpoints", transient=True):
        todo = [method for method in methods if not (method.slow and place)]
        with tempfile.TemporaryDirectory(prefix="sawlog-bench-") as folder:
            model = checkpoint(settings, data, truth, place)
            for name, (scores, took) in scores_of(model, data, todo, Path(folder)).items():
                found[name].append(scores)
                seconds[name].append(took)
    results = []
    for method in methods:
        each = [lds_both(scores.values, truth)[0] for scores in found[method.name]]
        several, margin = lds_both(ensemble(found[method.name]).values, truth)
        middle, took = float(np.mean(each)), float(np.median(seconds[method.name]))
        ends, marks = (min(each), max(each)), (method.one, method.several)
        results.append(Result(method.name, middle, ends, several, margin, len(each), took, marks))
    return results, ceiling(truth)


def show(results: list[Result], title: str) -> None:
    table = Table(title=title)
    for name in ("method", "one checkpoint", "least-most", "mean of", "", "by margin", "time"):
        table.add_column(name, justify="left" if name in ("method", "mean of") else "right")
    table.add_column("marks")
    for row in results:
        marks = " / ".join("" if mark is None else f"{mark:.2f}" for mark in row.marks)
        verdict = (
            "" if not row.holds else ("[green]holds[/]" if all(row.holds) else "[red]missed[/]")
        )
        table.add_row(
            row.method,
            f"{row.one:.3f}",
            f"{row.spread[0]:.3f}-{row.spread[1]:.3f}",
            str(row.checkpoints),
            f"{row.several:.3f}",
            f"{row.margin:.3f}",
            f"{row.seconds:.1f} s",
            f"{marks.removesuffix(' / ')} {verdict}",
        )
    Console(width=130).print(table)


# -- pairs a second -------------------------------------------------------------------------------


SHAPES = {
    "MLP, 8,832 values": {"0": (64, 64), "2": (64, 64), "4": (10, 64)},
    "GPT, 65,536 values": {f"h.{i}": (64, 64) for i in range(16)},
}
QUERIES = 128


def pairs(folder: Path, rounds: int, megabytes: int) -> list[Row]:
    """Scores from disk against the bare product over a memory map of the same rows."""
    out = []
    for what, shapes in SHAPES.items():
        width = sum(rows * cols for rows, cols in shapes.values())
        count = megabytes * 2**20 // (4 * width)
        draw = np.random.default_rng(0)
        path = folder / what.partition(",")[0]
        raw = np.lib.format.open_memmap(f"{path}.npy", "w+", np.float32, (count, width))
        with sawlog.store.create(path) as writer:
            for start in range(0, count, 512):
                some = draw.standard_normal((min(512, count - start), width), np.float32)
                raw[start : start + len(some)] = some
                writer.append(np.arange(start, start + len(some)), _cut(some, shapes))
        raw.flush()
        del raw
        queries = draw.standard_normal((QUERIES, width), np.float32)
        asked = _cut(queries, shapes)
        bare = functools.partial(_bare, Path(f"{path}.npy"), queries)
        ours = functools.partial(attribute, path, asked, curvature="identity")
        best = functools.partial(ours, top_k=10)
        assert np.allclose(ours().values, bare(), rtol=1e-3, atol=1e-2 * width**0.5)
        rows = compare(
            f"{what}, {count:,} x {QUERIES}",
            [
                Contestant("bare product", bare),
                Contestant("sawlog, all scores", ours),
                Contestant("sawlog, 10 best", best),
            ],
            rounds=rounds,
            limits={"sawlog, all scores": 0.8, "sawlog, 10 best": 0.8},
            speed=True,
        )
        for row in rows:
            rate = count * QUERIES / row.seconds
            out.append(dataclasses.replace(row, who=f"{row.who}: {rate / 1e6:.2f} M pairs/s"))
    return out


def _cut(rows: np.ndarray, shapes: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    edges = np.cumsum([rows_ * cols for rows_, cols in shapes.values()])[:-1]
    parts = zip(shapes.items(), np.split(rows, edges, 1), strict=True)
    return {f"grad/{name}": part.reshape(len(rows), *shape) for (name, shape), part in parts}


def _bare(path: Path, queries: np.ndarray) -> np.ndarray:
    """One matrix product over the memory map."""
    return queries @ np.load(path, mmap_mode="r").T


# -- fitting --------------------------------------------------------------------------------------


def fitting(folder: Path, rounds: int) -> list[Row]:
    """Examples a second of EK-FAC for a 784-512-512-10 MLP; kronfluence has 29."""
    from _torch_models import mlp

    ways = {
        "LoGra rank 64, stored": (_stored, mlp(24, 250)),
        "whole, nothing stored": (_two_passes, mlp(1, 250)),
    }
    rows = []
    for name, (way, case) in ways.items():
        times = []
        for turn in range(rounds):
            run = sawlog.torch.Run(f"fit-{name[0]}-{turn}", root=folder)
            times.append(seconds_of(functools.partial(way, run, case)))
        rates = sorted(case.examples / each for each in times)
        who = f"{name}, {case.examples:,} examples, examples/s"
        middle, took = float(np.median(rates)), float(np.median(times))
        rows.append(Row("EK-FAC of an MLP", who, middle, rates[0], rates[-1], took, 1450.0, True))
    return rows


def _pass_over(run: sawlog.torch.Run, case: Any) -> None:
    run.watch(case.model, quiet=True)
    for ids, batch in run.batches(case.batches, quiet=True):
        with run(data_id=ids):
            run.backward(case.loss(case.model, batch))
    run.finalize()


def _stored(run: sawlog.torch.Run, case: Any) -> None:
    """Log projected gradients and factors, then fit to what is stored."""
    run.setup(statistic="kfac", compress=64)
    _pass_over(run, case)
    sawlog.influence.curvature_for(sawlog.influence.Logs(run.logs), "ekfac")


def _two_passes(run: sawlog.torch.Run, case: Any) -> None:
    """Whole gradients: the factors in one pass, corrected eigenvalues in another."""
    for statistic in ("kfac", "ekfac"):
        run.setup(statistic=statistic, save=[])
        _pass_over(run, case)
    for name in run.statistics.names:
        if "ekfac/" in name:
            run.statistics.ekfac(name.partition("ekfac/")[2])


# -- a million rows -------------------------------------------------------------------------------


LARGE, WIDTH, BUDGET = 1_000_000, 4_096, 2 << 30


def large(folder: Path, rows: int) -> list[Row]:
    """Ten best of a million rows in bf16 for 100 queries, in a process of its own."""
    path = folder / "large"
    draw = np.random.default_rng(0)
    some = draw.standard_normal((1 << 14, WIDTH), np.float32)
    with sawlog.store.create(path) as writer:
        for start in track(range(0, rows, len(some)), "writing", transient=True):
            part = np.roll(some, start % 8191, axis=1)[: min(len(some), rows - start)]
            ids = np.arange(start, start + len(part))
            writer.append(ids, {"grad/w": part.astype(ml_dtypes.bfloat16)})
    command = [sys.executable, __file__, "--alone", str(path)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    seconds, peak = found["seconds"], found["peak"]
    what, rate = f"{rows:,} x {WIDTH:,} in bf16", rows * 100 / seconds / 1e6
    who = f"10 best for 100 queries: {rate:.2f} M pairs/s; GB of memory of its own"
    return [Row(what, who, peak / 1e9, peak / 1e9, peak / 1e9, seconds, BUDGET / 1e9)]


def alone(path: str) -> None:
    """Seconds, and the greatest memory that is not pages of the memory map."""
    peak, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], _anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    queries = np.random.default_rng(1).standard_normal((100, WIDTH), np.float32)
    start = time.perf_counter()
    attribute(path, {"w": queries}, curvature="identity", top_k=10, budget=BUDGET)
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(json.dumps({"seconds": seconds, "peak": peak[0]}))


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


# -- all of it ------------------------------------------------------------------------------------


def scoring(args: argparse.Namespace) -> tuple[bool, list[dict[str, Any]]]:
    settings = Settings(draw=args.draw)
    if args.quick:
        settings = dataclasses.replace(settings, seeds=5, checkpoints=3)
    methods = [method for method in METHODS if args.slow or not method.slow]
    results, noise = datamodeling(settings, methods)
    show(
        results,
        f"Linear datamodeling score on {settings.data}, default options, draw {settings.draw}; "
        f"one half of the seeds for the other: {noise:.2f}",
    )
    return all(all(row.holds) for row in results), [dataclasses.asdict(row) for row in results]


def speeds(args: argparse.Namespace) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="sawlog-bench-") as name:
        folder = Path(name)
        rows += pairs(folder, 5 if args.quick else 11, 256 if args.quick else 1024)
        rows += fitting(folder, 1 if args.quick else 3)
        if args.large:
            rows += large(folder, LARGE // 10 if args.quick else LARGE)
        os.sync()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer seeds, checkpoints and rounds")
    parser.add_argument("--lds-only", action="store_true", help="only how good scores are")
    parser.add_argument("--speed-only", action="store_true", help="only how fast they are")
    parser.add_argument("--large", action="store_true", help="a million rows as well: 8 GB of disk")
    parser.add_argument("--slow", action="store_true", help="the Fisher of whole gradients as well")
    parser.add_argument("--draw", type=int, default=0, help="another draw of data and subsets")
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    parser.add_argument("--save", type=Path, help="write the figures there as JSON")
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        alone(args.alone)
        return
    good, said = True, {}
    if not args.speed_only:
        good, said["lds"] = scoring(args)
    if not args.lds_only:
        rows = speeds(args)
        good = report(rows, "Attribution; speeds relative to the bare product") and good
        said["speed"] = [dataclasses.asdict(row) for row in rows]
    if args.save is not None:
        args.save.write_text(json.dumps(said, indent=1))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
