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

from sawlog.influence._attribute import attribute as attribute
from sawlog.influence._fitted import curvature_for as curvature_for
from sawlog.influence._logs import Logs as Logs
from sawlog.influence._scores import Scores as Scores
from sawlog.influence._scores import ensemble as ensemble
from sawlog.influence._scores import load_scores as load_scores
from sawlog.influence._self import Ranking as Ranking
from sawlog.influence._self import self_influence as self_influence

__all__ = [
    "Logs",
    "Ranking",
    "Scores",
    "attribute",
    "curvature_for",
    "ensemble",
    "load_scores",
    "self_influence",
]
