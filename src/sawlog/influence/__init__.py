"""Influence: which training examples made the model behave as it does.

>>> import numpy as np
>>> train = {"w": np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])}
>>> scores = attribute(train, {"w": np.array([[3.0, 1.0]])}, curvature="identity")
>>> scores.values
array([[ 3.,  2., -3.]])
>>> scores.top(1)[0]
[(0, 3.0)]
"""

from __future__ import annotations

import importlib
from typing import Any

from sawlog._optional import require
from sawlog.influence._attribute import attribute as attribute
from sawlog.influence._bm25 import bm25 as bm25
from sawlog.influence._ensemble import ensemble as ensemble
from sawlog.influence._fitted_curvature import curvature_for as curvature_for
from sawlog.influence._log_loader import LogLoader as LogLoader
from sawlog.influence._logix import compute_influence as compute_influence
from sawlog.influence._logix import compute_influence_all as compute_influence_all
from sawlog.influence._logix import compute_self_influence as compute_self_influence
from sawlog.influence._logs import Logs as Logs
from sawlog.influence._methods import activation_similarity as activation_similarity
from sawlog.influence._methods import gradient_cosine as gradient_cosine
from sawlog.influence._methods import influence_functions as influence_functions
from sawlog.influence._methods import less as less
from sawlog.influence._methods import relatif as relatif
from sawlog.influence._methods import tracin as tracin
from sawlog.influence._methods import trackstar as trackstar
from sawlog.influence._methods import trak as trak
from sawlog.influence._mixed_curvature import Components as Components
from sawlog.influence._run_influence import Influence as Influence
from sawlog.influence._scores import Scores as Scores
from sawlog.influence._scores import load_scores as load_scores
from sawlog.influence._self_influence import Ranking as Ranking
from sawlog.influence._self_influence import self_influence as self_influence
from sawlog.influence._source import TrainingSegment as TrainingSegment
from sawlog.influence._source import source as source
from sawlog.influence._tasks import attribution_table as attribution_table
from sawlog.influence._tasks import label_errors as label_errors
from sawlog.influence._tasks import near_duplicates as near_duplicates
from sawlog.influence._tasks import prune as prune
from sawlog.influence._tokens._token_scores import token_scores as token_scores
from sawlog.influence._tokens._token_table import token_table as token_table
from sawlog.influence._training import training_influence as training_influence
from sawlog.influence._validation._bank import Bank as Bank
from sawlog.influence._validation._recall import Recall as Recall
from sawlog.influence._validation._recall import recall as recall
from sawlog.influence._validation._tune_damping import tune_damping as tune_damping
from sawlog.influence._validation._validate import validate as validate
from sawlog.influence._validation._validation import GroupChange as GroupChange
from sawlog.influence._validation._validation import Validation as Validation

__all__ = [
    "Bank",
    "Components",
    "GroupChange",
    "Influence",
    "LogLoader",
    "Logs",
    "Ranking",
    "Recall",
    "Scores",
    "TrainingSegment",
    "Validation",
    "activation_similarity",
    "attribute",
    "attribution_table",
    "bm25",
    "compute_influence",
    "compute_influence_all",
    "compute_self_influence",
    "curvature_for",
    "ensemble",
    "gradient_cosine",
    "influence_functions",
    "label_errors",
    "less",
    "load_scores",
    "near_duplicates",
    "prune",
    "recall",
    "relatif",
    "self_influence",
    "source",
    "through_training",
    "token_scores",
    "token_table",
    "tracin",
    "trackstar",
    "training_influence",
    "trak",
    "tune_damping",
    "validate",
]

# Functions that need a framework, which is imported when one of them is first used.
_FRAMEWORK = {"through_training": ("jax", "sawlog.jax._training")}


def __getattr__(name: str) -> Any:
    if name not in _FRAMEWORK:
        raise AttributeError(f"module 'sawlog.influence' has no attribute {name!r}")
    package, home = _FRAMEWORK[name]
    require(package, package, f"sawlog.influence.{name}")
    return getattr(importlib.import_module(home), name)
