"""``Curvature``: what gradients are preconditioned with, layer by layer."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sawlog import store
from sawlog.curvature._damping import DENSE, Damping, Spectrum, amount, inverse
from sawlog.curvature._joint import Joint
from sawlog.curvature._layer import Layer, layer_from
from sawlog.errors import ArgumentError
from sawlog.records import Entries, Records

StrPath = str | os.PathLike[str]
Rows = Mapping[str, np.ndarray]
JOINT = "@matrix"


class Curvature:
    """A symmetric matrix over gradients, block by block, that can be inverted with any damping.

    Args:
        kind: what it is: ``"fisher"``, ``"kfac"`` and so on.
        layers: the curvature of each layer, by its name; that of ``"identity"`` has none.
        joint: one matrix over all layers together, in their place.

    >>> from sawlog.curvature import Diagonal
    >>> curvature = Curvature("diagonal", {"w": Diagonal(np.array([1.0, 3.0]))})
    >>> curvature.solve("w", np.array([[2.0, 4.0]]), damping=1.0)
    array([[1., 1.]])
    """

    def __init__(self, kind: str, layers: Mapping[str, Layer], joint: Joint | None = None) -> None:
        self.kind = kind
        self.layers = dict(layers)
        self.joint = joint

    def __repr__(self) -> str:
        count = len(self.layers if self.joint is None else self.joint.shapes)
        return f"Curvature({self.kind!r}, {count} layers)"

    def _layer(self, name: str) -> Layer:
        if self.joint is not None:
            raise ArgumentError(
                f"The curvature {self.kind!r} couples all layers, and none can be taken alone. "
                "Hint: solve_all(rows) and quadratic_all(rows) take those of all layers."
            )
        if name not in self.layers:
            raise ArgumentError(
                f"The curvature {self.kind!r} does not know the layer {name!r}; it was fitted to: "
                f"{', '.join(self.layers)}. Hint: fit it to the logs that it is used with."
            )
        return self.layers[name]

    def added(self, name: str, damping: Damping = None) -> float:
        """What is added to the eigenvalues of a layer."""
        if self.kind == "identity":
            return 0.0
        if self.joint is not None:
            return amount(damping, name, self.joint.spectrum(name), DENSE)
        layer = self._layer(name)
        return amount(damping, name, Spectrum.of(layer.values), layer.damping)

    def solve(self, name: str, rows: np.ndarray, damping: Damping = None) -> np.ndarray:
        """``(H + d)^-1 g`` for each row ``g`` of a layer, in float64."""
        return self._scaled(name, rows, damping, power=1.0)

    def whiten(self, name: str, rows: np.ndarray, damping: Damping = None) -> np.ndarray:
        """``(H + d)^-1/2 g``: dots of two such are those of one with the other solved."""
        return self._scaled(name, rows, damping, power=0.5)

    def _scaled(self, name: str, rows: np.ndarray, damping: Damping, power: float) -> np.ndarray:
        rows = np.asarray(rows, np.float64)
        if self.kind == "identity":
            return rows
        layer = self._layer(name)
        scale = inverse(layer.values, self.added(name, damping), name) ** power
        turned = layer.into(fitting(name, layer, rows))
        return layer.back(turned * scale).reshape(rows.shape)

    def quadratic(self, name: str, rows: np.ndarray, damping: Damping = None) -> np.ndarray:
        """``g^T (H + d)^-1 g`` for each row, ``[n]``."""
        rows = np.asarray(rows, np.float64)
        if self.kind == "identity":
            return (rows**2).sum(tuple(range(1, rows.ndim)))
        layer = self._layer(name)
        scale = inverse(layer.values, self.added(name, damping), name).ravel()
        turned = layer.into(fitting(name, layer, rows)).reshape(len(rows), len(scale))
        return turned**2 @ scale

    def solve_all(self, rows: Rows, damping: Damping = None) -> dict[str, np.ndarray]:
        """``(H + d)^-1 g`` of all layers, whether the curvature couples them or not."""
        if self.joint is None:
            return {name: self.solve(name, values, damping) for name, values in rows.items()}
        return self.joint.solve(rows, {n: self.added(n, damping) for n in self.joint.shapes})

    def quadratic_all(self, rows: Rows, damping: Damping = None) -> dict[str, np.ndarray]:
        """What each layer adds to ``g^T (H + d)^-1 g``, ``[n]``."""
        if self.joint is None:
            return {name: self.quadratic(name, values, damping) for name, values in rows.items()}
        solved = self.solve_all(rows, damping)
        axes = {name: tuple(range(1, values.ndim)) for name, values in solved.items()}
        return {n: (np.asarray(rows[n]) * v).sum(axes[n]) for n, v in solved.items()}

    def save(self, path: StrPath, notes: Mapping[str, Any] | None = None) -> None:
        """Write it to a store, with notes that JSON can hold; :func:`load` reads it.

        It is there as a whole or not at all, whoever else saves one to the same path.
        """
        entries = {
            f"{name}@{part}": Entries(np.asarray(array)[None])
            for name, layer in self.layers.items()
            for part, array in layer.arrays().items()
        }
        meta = {"curvature": self.kind, "layers": list(self.layers), "notes": dict(notes or {})}
        if self.joint is not None:
            entries[JOINT] = Entries(self.joint.matrix[None])
            meta["joint"] = self.joint.to_json()
        place = Path(path)
        aside = place.with_name(f".{place.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}")
        with store.create(aside, meta=meta, interval=None) as writer:
            if entries:
                writer.write(Records(entries))
        _put(aside, place)


def _put(made: Path, place: Path) -> None:
    """A folder in the place of another, by renaming alone: nobody sees half of one."""
    old = made.with_name(f"{made.name}.old")
    with contextlib.suppress(FileNotFoundError):
        os.rename(place, old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        os.rename(made, place)
    except OSError as error:
        shutil.rmtree(made, ignore_errors=True)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # else another one was faster
            raise


def fitting(name: str, layer: Layer, rows: np.ndarray) -> np.ndarray:
    """Rows in the shape that a layer was fitted to.

    Raises:
        ArgumentError: they have other elements.
    """
    shape = layer.row_shape()
    if math.prod(rows.shape[1:]) != math.prod(shape):
        raise ArgumentError(
            f"The curvature of the layer {name!r} is one of gradients of the shape {list(shape)}, "
            f"and these have {list(rows.shape[1:])}. Hint: fit it to the logs that it is used with."
        )
    return rows.reshape(len(rows), *shape)


def load(path: StrPath) -> Curvature:
    """A curvature that was saved.

    Raises:
        StoreNotFoundError: there is nothing.
        ArgumentError: there is a store of something else.
    """
    return load_with_notes(path)[0]


def load_with_notes(path: StrPath) -> tuple[Curvature, dict[str, Any]]:
    """A curvature that was saved, and what was noted with it."""
    with store.open(path) as reader:
        if "curvature" not in reader.meta:
            raise ArgumentError(f"{Path(path)} is the store of something else than a curvature.")
        if "joint" in reader.meta:
            joint = Joint.of(np.array(reader.read(JOINT)[0]), reader.meta["joint"])
            return Curvature(reader.meta["curvature"], {}, joint), reader.meta["notes"]
        parts: dict[str, dict[str, Any]] = {name: {} for name in reader.meta["layers"]}
        for series in reader.schema.series:
            name, _, part = series.column.name.rpartition("@")
            parts[name][part] = np.array(reader.read(series.column.name)[0])
        layers = {name: layer_from(arrays) for name, arrays in parts.items()}
        return Curvature(reader.meta["curvature"], layers), reader.meta["notes"]


IDENTITY = Curvature("identity", {})
