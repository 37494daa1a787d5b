"""Curvature: what gradients are preconditioned with before they are compared.

A curvature is fitted once and inverted with any damping; it is saved with the logs it belongs to.
"""

from __future__ import annotations

from sawlog.curvature._choose_damping import choose_damping as choose_damping
from sawlog.curvature._curvature import IDENTITY as IDENTITY
from sawlog.curvature._curvature import Curvature as Curvature
from sawlog.curvature._curvature import load as load
from sawlog.curvature._curvature import load_with_notes as load_with_notes
from sawlog.curvature._damping import Damping as Damping
from sawlog.curvature._damping import Relative as Relative
from sawlog.curvature._damping import Sampled as Sampled
from sawlog.curvature._damping import Typical as Typical
from sawlog.curvature._fit import KINDS as KINDS
from sawlog.curvature._fit import KroneckerFactors as KroneckerFactors
from sawlog.curvature._fit import Scan as Scan
from sawlog.curvature._fit import fit as fit
from sawlog.curvature._joint import Joint as Joint
from sawlog.curvature._layer import Diagonal as Diagonal
from sawlog.curvature._layer import FullMatrix as FullMatrix
from sawlog.curvature._layer import Kronecker as Kronecker
from sawlog.curvature._layer import Layer as Layer

__all__ = [
    "IDENTITY",
    "KINDS",
    "Curvature",
    "Damping",
    "Diagonal",
    "FullMatrix",
    "Joint",
    "Kronecker",
    "KroneckerFactors",
    "Layer",
    "Relative",
    "Sampled",
    "Scan",
    "Typical",
    "choose_damping",
    "fit",
    "load",
    "load_with_notes",
]
