"""What users get who choose nothing. A default that changes is a change of results: it is meant."""

import dataclasses
import inspect
import math

import pytest

from sawlog import curvature, influence
from sawlog.cli._attribute import Attribute
from sawlog.cli._self_influence import SelfInfluence
from sawlog.cli._validate import Validate
from sawlog.run_files._options import Compression, Options
from sawlog.torch import Run, TrainingCapture, gauss_newton

MIB = 1 << 20
SCORING = {
    "curvature": "ekfac",
    "damping": None,
    "names": None,
    "budget": 256 * MIB,
    "weights": "same",
}
RETRAINING = {"drop": 0.5, "subsets": 100, "seeds": 5, "together": 1, "draw": 0}
DEFAULTS = {
    influence.attribute: {
        **SCORING,
        "train": None,
        "queries": None,
        "ensemble": (),
        "mode": "dot",
        "top_k": None,
        "sign": "positive",
        "per_layer": False,
        "mix": None,
        "second_moments": None,
        "executor": None,
        "checkpoint": None,
        "device": None,
        "nonfinite": "error",
        "progress": False,
    },
    influence.self_influence: {**SCORING, "nonfinite": "error", "executor": None, "device": None},
    influence.token_scores: {**SCORING, "ids": None},
    influence.near_duplicates: {"threshold": 0.99, "neighbours": 8},
    influence.attribution_table: {"query_data": None, "k": 3, "least": True, "width": 60},
    influence.recall: {"k": (1, 5, 10)},
    influence.bm25: {"k1": 1.2, "b": 0.75, "words": influence._bm25.words_of},
    influence.ensemble: {"weights": None, "keep": False},
    influence.training_influence: {"steps": None, "weigh": True},
    influence.source: {
        **{name: value for name, value in SCORING.items() if name != "damping"},
        "top_k": None,
        "sign": "positive",
    },
    influence.validate: {
        **RETRAINING,
        **dict.fromkeys(("train", "measure", "bank", "better", "ids", "queries", "settings")),
        "groups": 2,
        "share": 0.05,
        "confidence": 0.95,
        "progress": False,
    },
    influence.Bank.retrain: {**RETRAINING, "measure": None, "progress": False},
    influence.Scores.top: {"k": 10, "sign": "positive"},
    influence.Scores.interval: {"level": 0.9},
    curvature.Relative: {"share": 0.1},
    curvature.Typical: {"share": 0.003},
    curvature.Sampled: {"share": 0.05, "noise": 1.0},
    curvature.ConjugateGradients: {
        "preconditioner": None,
        "kind": "products",
        "count": None,
        "iterations": 100,
        "tolerance": 1e-4,
        "provenance": (),
    },
    Compression: {"kind": "orthonormal", "rank": None, "bytes": None, "seed": 0},
    Options: {
        "log": ("grad",),
        "save": None,
        "statistic": (),
        "compress": None,
        "dtype": "float32",
        "precision": "float32",
        "offload": False,
        "reduction": "auto",
        "forward": "input",
        "duplicates": "error",
        "interval": 30.0,
        "weights": "same",
        "nonfinite": "error",
        "fisher": "empirical",
        "fisher_seed": 0,
    },
    TrainingCapture: {
        **dict.fromkeys(("config", "steps", "optimizer", "names", "types")),
        "root": "sawlog",
        "correct": False,
        "uncovered": "func",
        "exists": "append",
    },
    Run.labels: {
        "distribution": "categorical",
        "axis": None,
        "shift": 0,
        "ignore_index": -100,
        "std": math.sqrt(0.5),
    },
    Run.check: {
        **dict.fromkeys(("mask", "one", "tolerance")),
        "examples": 4,
        "raises": False,
        "quiet": False,
    },
    gauss_newton: {"loss": "cross_entropy", "preconditioner": None},
}


def defaults_of(function):
    given = inspect.signature(function).parameters.items()
    return {name: p.default for name, p in given if p.default is not p.empty}


@pytest.mark.parametrize("function", DEFAULTS, ids=lambda function: function.__qualname__)
def test_defaults(function):
    assert defaults_of(function) == DEFAULTS[function]


@pytest.mark.parametrize(
    ("command", "function", "others"),
    [
        (Attribute, influence.attribute, {"top": 10}),
        (SelfInfluence, influence.self_influence, {"top": 20, "least": False}),
        (Validate, influence.validate, {}),
    ],
)
def test_commands_have_the_defaults_of_the_functions(command, function, others):
    """But for how much is shown; and what is left out is None or () on the command line."""
    known = defaults_of(function)
    for field in dataclasses.fields(command):
        if field.name in others:
            assert field.default == others[field.name]
        elif field.name in known and field.default not in (None, (), dataclasses.MISSING):
            assert field.default == known[field.name], field.name
