"""Curvature: matrices that precondition gradients before they are compared.

Fit a curvature once and invert it with any damping. It is saved with the logs it was fitted to.

>>> import numpy as np
>>> rows = {"w": np.array([[1.0, 0.0], [0.0, 2.0]])}
>>> curvature = fit("diagonal", lambda: iter([rows]))
>>> curvature.solve("w", np.array([[1.0, 1.0]]), damping=0.5)
array([[1. , 0.4]])
"""

from __future__ import annotations

import warnings
from typing import Any

from sawlog.curvature._choose_damping import choose_damping as choose_damping
from sawlog.curvature._conjugate_gradients import ConjugateGradients as ConjugateGradients
from sawlog.curvature._corrected import Corrected as Corrected
from sawlog.curvature._curvature import IDENTITY as IDENTITY
from sawlog.curvature._curvature import Curvature as Curvature
from sawlog.curvature._curvature import load as load
from sawlog.curvature._curvature import load_with_notes as load_with_notes
from sawlog.curvature._damping import Damping as Damping
from sawlog.curvature._damping import Relative as Relative
from sawlog.curvature._damping import Sampled as Sampled
from sawlog.curvature._damping import Typical as Typical
from sawlog.curvature._fit import KINDS as KINDS
from sawlog.curvature._fit import fit as fit
from sawlog.curvature._fit import fit_without_rows as fit_without_rows
from sawlog.curvature._fit import needs_factors as needs_factors
from sawlog.curvature._fit import row_sums as row_sums
from sawlog.curvature._joint import Joint as Joint
from sawlog.curvature._layer import Diagonal as Diagonal
from sawlog.curvature._layer import FullMatrix as FullMatrix
from sawlog.curvature._layer import Kronecker as Kronecker
from sawlog.curvature._layer import Layer as Layer
from sawlog.curvature._row_sums import RowSums as RowSums
from sawlog.curvature._row_sums import add_blocks as add_blocks

__all__ = [
    "KINDS",
    "ConjugateGradients",
    "Corrected",
    "Curvature",
    "Damping",
    "Diagonal",
    "FullMatrix",
    "Joint",
    "Kronecker",
    "Relative",
    "Sampled",
    "Typical",
    "choose_damping",
    "fit",
    "load",
]


def __getattr__(name: str) -> Any:
    if name == "Dense":
        warnings.warn(
            "sawlog.curvature.Dense is deprecated; use sawlog.curvature.FullMatrix.",
            DeprecationWarning,
            stacklevel=2,
        )
        return FullMatrix
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
