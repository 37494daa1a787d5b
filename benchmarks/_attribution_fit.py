"""Examples a second of fitting EK-FAC for a 784-512-512-10 MLP, and what kronfluence needs."""

from __future__ import annotations

import copy
import functools
import importlib.util
from pathlib import Path

import numpy as np
import torch
from _attribution_peers import analyzer_of, quiet
from _timing import Row, seconds_of
from _torch_models import Case, mlp
from torch.utils.data import TensorDataset

import sawlog.influence
import sawlog.torch

BATCHES, SIZE = 24, 250  # ours: 6,000 examples
FEW = 500  # kronfluence's, which takes minutes for all; of fewer, what it does once tells more
SCORED, QUERIES = 2_000, 128
TIMES, RATE = 50.0, 1450.0  # the mark, and what it is in examples/s where there is no kronfluence


def fitting(folder: Path, rounds: int, peers: bool) -> list[Row]:
    """Ours, as a multiple of kronfluence's rate in the same round, if it is installed."""
    case = mlp(BATCHES, SIZE)
    ours = {"LoGra rank 64, stored": _stored, "whole, nothing stored": _two_passes}
    theirs = peers and importlib.util.find_spec("kronfluence") is not None
    rates: dict[str, list[float]] = {name: [] for name in ours}
    fits, scorings = [], []
    for turn in range(rounds):
        if theirs:
            fitted, scored = _kronfluence(folder / f"kronfluence-{turn}", case)
            fits.append(FEW / fitted)
            scorings.append(SCORED * QUERIES / scored)
        for name, way in ours.items():
            run = sawlog.torch.Run(f"fit-{name[0]}-{turn}", root=folder)
            rates[name].append(case.examples / seconds_of(functools.partial(way, run, case)))
    what, rows = "EK-FAC of an MLP", []
    for name, own in rates.items():
        who, took = f"sawlog, {name}, {case.examples:,} examples", case.examples / _middle(own)
        if theirs:
            times = [one / two for one, two in zip(own, fits, strict=True)]
            who = f"{who} / kronfluence: {_middle(own):,.0f} examples/s"
            rows.append(_row(what, who, times, took, TIMES))
        else:
            rows.append(_row(what, f"{who}, examples/s", own, took, RATE))
    if theirs:
        who = f"kronfluence, {FEW} examples, examples/s"
        rows.append(_row(what, who, fits, FEW / _middle(fits)))
        what, who = f"MLP, {SCORED:,} x {QUERIES}", "kronfluence, gradients made again, pairs/s"
        rows.append(_row(what, who, scorings, SCORED * QUERIES / _middle(scorings)))
    return rows


def _middle(values: list[float]) -> float:
    return float(np.median(values))


def _row(
    what: str, who: str, values: list[float], seconds: float, mark: float | None = None
) -> Row:
    return Row(what, who, _middle(values), min(values), max(values), seconds, mark, True)


# -- ours -----------------------------------------------------------------------------------------


def _pass_over(run: sawlog.torch.Run, case: Case) -> None:
    run.watch(case.model, quiet=True)
    for ids, batch in run.batches(case.batches, quiet=True):
        with run(data_id=ids):
            run.backward(case.loss(case.model, batch))
    run.finalize()


def _stored(run: sawlog.torch.Run, case: Case) -> None:
    """Log projected gradients and factors, then fit to what is stored."""
    run.setup(statistic="kfac", compress=64)
    _pass_over(run, case)
    sawlog.influence.curvature_for(sawlog.influence.Logs(run.store_path), "ekfac")


def _two_passes(run: sawlog.torch.Run, case: Case) -> None:
    """Whole gradients: the factors in one pass, corrected eigenvalues in another."""
    for statistic in ("kfac", "ekfac"):
        run.setup(statistic=statistic, save=[])
        _pass_over(run, case)
    for name in run.statistics.names:
        if "ekfac/" in name:
            run.statistics.ekfac(name.partition("ekfac/")[2])


# -- kronfluence ----------------------------------------------------------------------------------


def _kronfluence(folder: Path, case: Case) -> tuple[float, float]:
    """Seconds of fitting, and of scoring, for which it makes training gradients again."""
    from kronfluence.arguments import FactorArguments

    x, y = (torch.cat(each) for each in zip(*case.batches, strict=True))
    few, train = TensorDataset(x[:FEW], y[:FEW]), TensorDataset(x[:SCORED], y[:SCORED])
    queries = TensorDataset(x[-QUERIES:], y[-QUERIES:])
    analyzer = analyzer_of(copy.deepcopy(case.model), folder)

    def fit() -> None:
        options = FactorArguments(strategy="ekfac", use_empirical_fisher=True)
        analyzer.fit_all_factors("factors", few, per_device_batch_size=SIZE, factor_args=options)

    def score() -> None:
        analyzer.compute_pairwise_scores(
            "scores",
            factors_name="factors",
            query_dataset=queries,
            train_dataset=train,
            per_device_query_batch_size=QUERIES,
            per_device_train_batch_size=SIZE,
        )

    with quiet():
        return seconds_of(fit), seconds_of(score)
