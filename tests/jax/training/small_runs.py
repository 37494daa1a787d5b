"""Runs of twelve examples that take a moment, and their scores."""

import numpy as np
import optax

from sawlog.influence import through_training
from tests.jax.training import programs

X, Y = (a.astype(np.float32) for a in programs.data(12))
OPTIONS = {
    "data": (X, Y),
    "queries": (X[:2], Y[:2]),
    "init": programs.init,
    "loss": programs.loss,
    "optimizer": optax.sgd(0.1),
    "batch_size": 3,
    "epochs": 1,
    "check": False,
    "progress": False,
}


def scored(**options):
    return through_training(**{**OPTIONS, **options})
