"""The linear datamodeling score of every method, ours and others', on the same checkpoints."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import _attribution_peers
import numpy as np
from _attribution_jax import JaxCheckpoint
from _attribution_peers import Peer
from _lds import (
    Data,
    Settings,
    Truth,
    ceiling,
    data_of,
    half_checkpoints,
    lds_both,
    model_of,
    truth_of,
)
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import sawlog.torch
from sawlog.influence import Scores, attribute, ensemble


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
    halves: bool = False  # checkpoints that were trained on random halves of the data
    twin: str | None = None  # computed in JAX: the method of PyTorch whose scores are the same


METHODS = (
    Method("gradient dot product", "identity"),
    Method("gradient cosine", "identity", mode="cosine"),
    Method("diagonal Fisher", "diagonal"),
    Method("Fisher, whole gradients", "fisher", slow=True),
    Method("Shampoo", "shampoo"),
    Method("K-FAC", "kfac"),
    Method("EK-FAC", "ekfac", one=0.72, several=0.77),
    Method("EK-FAC, half-data checkpoints", "ekfac", several=0.80, halves=True),
    Method("LoGra rank 16, random, Fisher", "fisher", "random", one=0.68),
    Method("LoGra rank 16, random, EK-FAC", "ekfac", "random", one=0.68),
    Method("LoGra rank 16, PCA, Fisher", "fisher", "pca", one=0.68),
    Method("LoGra rank 16, PCA, EK-FAC", "ekfac", "pca", one=0.68),
    Method("exact Gauss-Newton", "gauss-newton", one=0.69, several=0.80),
    Method("EK-FAC, from JAX", "ekfac", twin="EK-FAC"),
    Method(
        "LoGra rank 16, random, EK-FAC, from JAX",
        "ekfac",
        "random",
        twin="LoGra rank 16, random, EK-FAC",
    ),
    Method("exact Gauss-Newton, from JAX", "gauss-newton", twin="exact Gauss-Newton"),
)

SAME = 1e-4  # how far scores from JAX may be from those of PyTorch, relative to the largest

COMPRESS: dict[str, Any] = {
    "none": None,
    "random": {"rank": 16},
    "pca": {"kind": "pca", "rank": 16},
}


# -- our methods ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Logged:
    """The gradients of training images, on disk, and those of test images."""

    train: Path
    test: Any


def logged(model: nn.Module, data: Data, run: sawlog.torch.Run, compress: Any) -> Logged:
    """Log both, as a user would."""
    run.setup(statistic="kfac", compress=compress)
    run.watch(model, quiet=True)
    batches = zip(data.x.split(250), data.y.split(250), strict=True)
    for ids, (x, y) in run.batches(list(batches), quiet=True):
        with run(data_id=ids):
            run.backward(F.cross_entropy(model(x), y))
    run.eval()
    with run(data_id=np.arange(len(data.test_x))):
        run.backward(F.cross_entropy(model(data.test_x), data.test_y))
    return Logged(run.store_path, run.get_log())


class Ours:
    """Our methods on one checkpoint; gradients are logged once for each way to compress them."""

    def __init__(
        self, model: nn.Module, data: Data, folder: Path, methods: Sequence[Method], seed: int
    ):
        self.data = data
        self.run = sawlog.torch.Run("lds", root=folder)
        self.jax = JaxCheckpoint(model, data, folder / "jax") if _from_jax(methods) else None
        self.logs: dict[tuple[str, bool], Logged] = {}
        for name, way in COMPRESS.items():
            own = {**way, "seed": seed} if name == "random" else way
            wanted = [method for method in methods if method.compress == name]
            if any(method.twin is None for method in wanted):
                self.logs[name, False] = logged(model, data, self.run, own)
            if _from_jax(wanted):
                assert self.jax is not None
                self.logs[name, True] = Logged(*self.jax.logged(own))
        self.run.setup()

    def scores(self, method: Method) -> Scores:
        curvature: Any = method.curvature
        if curvature == "gauss-newton" and method.twin is not None:
            assert self.jax is not None
            self.jax.run.setup()
            curvature = self.jax.gauss_newton()
        elif curvature == "gauss-newton":
            batches = self.data.x.split(250)
            curvature = sawlog.torch.gauss_newton(self.run, batches, "cross_entropy")
        own = self.logs[method.compress, method.twin is not None]
        return attribute(own.train, own.test, curvature=curvature, mode=method.mode)


def _from_jax(methods: Sequence[Method]) -> bool:
    return any(method.twin is not None for method in methods)


def differences(found: dict[str, Found], methods: Sequence[Method]) -> dict[str, float]:
    """How far the scores from JAX are from those of PyTorch, relative to the largest."""
    far: dict[str, float] = {}
    for method in methods:
        if method.twin is None or method.twin not in found:
            continue
        pairs = zip(found[method.name].scores, found[method.twin].scores, strict=True)
        each = [(_values(one), _values(other)) for one, other in pairs]
        far[method.name] = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in each)
    return far


# -- all methods ----------------------------------------------------------------------------------


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


class Found:
    """What a method found for one checkpoint after another, and how long it took."""

    def __init__(self, name: str, marks: tuple[float | None, float | None] = (None, None)):
        self.name, self.marks = name, marks
        self.scores: list[np.ndarray | Scores] = []
        self.seconds: list[float] = []
        self.failure: str | None = None

    def add(self, scores: np.ndarray | Scores, start: float) -> None:
        self.scores.append(scores)
        self.seconds.append(time.perf_counter() - start)

    def result(self, truth: Truth) -> Result:
        each = [lds_both(_values(scores), truth)[0] for scores in self.scores]
        several, margin = lds_both(_mean(self.scores), truth)
        middle, took = float(np.mean(each)), float(np.median(self.seconds))
        ends = (min(each), max(each))
        return Result(self.name, middle, ends, several, margin, len(each), took, self.marks)


def _values(scores: Any) -> np.ndarray:
    return scores.values if isinstance(scores, Scores) else scores


def _mean(scores: list[Any]) -> np.ndarray:
    """The mean over checkpoints: our own function for our own scores."""
    if isinstance(scores[0], Scores):
        return ensemble(scores).values
    return np.mean(scores, axis=0)


def checkpoint(settings: Settings, data: Data, truth: Truth, place: int) -> nn.Module:
    return model_of(settings, data, [p[place] for p in truth.checkpoints]).eval()


def datamodeling(
    settings: Settings, methods: Sequence[Method], peers: Sequence[Peer]
) -> tuple[list[Result], float]:
    """All methods on one draw, and what noise leaves to be had."""
    data, truth = data_of(settings), truth_of(settings)
    half_truth = truth
    if any(method.halves for method in methods):
        half_truth = dataclasses.replace(truth, checkpoints=half_checkpoints(settings, data))
    ours = {method.name: Found(method.name, (method.one, method.several)) for method in methods}
    theirs = {peer.name: Found(peer.name) for peer in peers}
    for place in track(range(settings.checkpoints), "attributing checkpoints", transient=True):
        model = checkpoint(settings, data, truth, place)
        with tempfile.TemporaryDirectory(prefix="sawlog-bench-") as name:
            folder = Path(name)
            for halves in (False, True):
                wanted = [each for each in methods if each.halves == halves]
                wanted = [each for each in wanted if not (each.slow and place)]
                if not wanted:
                    continue
                of = checkpoint(settings, data, half_truth, place) if halves else model
                own = Ours(of, data, folder / f"halves-{halves}", wanted, place)
                for method in wanted:
                    start = time.perf_counter()
                    ours[method.name].add(own.scores(method), start)
            for number, peer in enumerate(peers):
                found = theirs[peer.name]
                if found.failure is None and not (peer.slow and place):
                    start = time.perf_counter()
                    _ask(found, peer, model, data, folder / f"peer-{number}", place, start)
    for found in theirs.values():
        if found.failure is not None:
            print(f"{found.name} failed, left out: {found.failure}")
    done = [*ours.values(), *(found for found in theirs.values() if found.failure is None)]
    for name, far in differences(ours, methods).items():
        print(f"{name}: scores differ from those of PyTorch by at most {far:.1e}")
        assert far < SAME, name
    return [found.result(truth) for found in done], ceiling(truth)


def _ask(
    found: Found,
    peer: Peer,
    model: nn.Module,
    data: Data,
    folder: Path,
    place: int,
    start: float,
) -> None:
    """Add what a peer finds; one that fails is left out from then on."""
    try:
        found.add(_attribution_peers.scores_of(peer, model, data, folder, place), start)
    except Exception as error:
        found.failure = f"{type(error).__name__}: {error}".splitlines()[0]


def show(results: Sequence[Result], title: str) -> None:
    table = Table(
        title=title, caption="times: ours from logs on disk on, others' from the model on"
    )
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
