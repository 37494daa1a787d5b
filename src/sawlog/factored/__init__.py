"""Maths on factor pairs, written once for numpy, PyTorch and JAX arrays.

The gradient of one use of a matrix of parameters is, for each example, a sum over positions ``t``
of outer products of ``left[t]`` and ``right[t]``. Gradients, their projections on both sides, and
the second moments of each side are computed from these factors. :class:`Pair` documents the factors
of each type of layer.

>>> import numpy as np
>>> pair = Pair(Dense(np.ones((5, 3, 2))), Dense(np.ones((5, 3, 4))))
>>> gradient(pair).shape, float(gradient(pair)[0, 0, 0])
((5, 2, 4), 3.0)
>>> small = pair.projected(np.ones((2, 1)), np.ones((4, 1)))
>>> gradient(small).shape, float(gradient(small)[0, 0, 0])
((5, 1, 1), 24.0)
"""

from __future__ import annotations

from sawlog.factored._eigen import eigh as eigh
from sawlog.factored._factor import Dense as Dense
from sawlog.factored._factor import Factor as Factor
from sawlog.factored._factor import OneHot as OneHot
from sawlog.factored._pair import Pair as Pair
from sawlog.factored._pair import gradient as gradient
from sawlog.factored._pair import rows as rows
from sawlog.factored._pair import vector as vector
from sawlog.factored._projections import RANDOM_PROJECTIONS as RANDOM_PROJECTIONS
from sawlog.factored._projections import Projection as Projection
from sawlog.factored._projections import principal as principal
from sawlog.factored._projections import random_projection as random_projection

__all__ = ["Dense", "OneHot", "Pair", "gradient", "rows", "vector"]
