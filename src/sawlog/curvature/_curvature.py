"""``Curvature``: the matrix that preconditions gradients, layer by layer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from sawlog import store
from sawlog._array_device import NUMPY, ArrayDevice, device_of, to_numpy
from sawlog.curvature._damping import JOINT as JOINT_DAMPING
from sawlog.curvature._damping import Damping, amount, inverse
from sawlog.curvature._joint import Joint
from sawlog.curvature._layer import Layer, same_layout
from sawlog.curvature._stored_layer import layer_from
from sawlog.errors import ArgumentError, ForeignStoreError, StoreNotFoundError
from sawlog.records import Entries, Records
from sawlog.store._format._store_notes import parsing
from sawlog.store._maintenance._remove import new_store

StrPath = str | os.PathLike[str]
LayerArrays = Mapping[str, Any]
JOINT = "@matrix"


class Curvature:
    """A symmetric matrix over gradients that can be inverted with any damping.

    Args:
        kind: ``"fisher"``, ``"kfac"`` and so on.
        layers: The curvature of each layer by name; empty for ``"identity"``.
        joint: One matrix over all layers, in place of ``layers``.
        count: The number of examples that it was fitted to, if it was fitted.
        provenance: The weights that it was computed with, as JSON of
            :class:`sawlog.capture.Provenance`; empty if unknown.

    >>> from sawlog.curvature import Diagonal
    >>> curvature = Curvature("diagonal", {"w": Diagonal(np.array([1.0, 3.0]))})
    >>> curvature.solve("w", np.array([[2.0, 4.0]]), damping=1.0)
    array([[1., 1.]])
    """

    def __init__(
        self,
        kind: str,
        layers: Mapping[str, Layer],
        joint: Joint | None = None,
        count: int | None = None,
        provenance: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.kind = kind
        self.provenance = tuple(provenance)
        self.count = count
        self.layers = dict(layers)
        self.joint = joint
        self._moved: dict[tuple[str, ArrayDevice], Layer] = {}

    def __repr__(self) -> str:
        count = len(self.layers if self.joint is None else self.joint.shapes)
        return f"Curvature({self.kind!r}, {count} layers)"

    def _layer(self, name: str) -> Layer:
        if self.joint is not None:
            raise ArgumentError(
                f"The curvature {self.kind!r} couples all layers, so one cannot be used alone. "
                "Hint: solve_all(rows) and quadratic_all(rows) take the rows of all layers."
            )
        if name not in self.layers:
            raise ArgumentError(
                f"The curvature {self.kind!r} has no layer {name!r}; it was fitted to: "
                f"{', '.join(self.layers)}. Hint: fit it to the logs that it is used with."
            )
        return self.layers[name]

    def added(self, name: str, damping: Damping = None) -> float:
        """Return the number that ``damping`` adds to the eigenvalues of a layer."""
        if self.kind == "identity":
            return 0.0
        if self.joint is not None:
            return amount(damping, name, self.joint.spectrum(name), JOINT_DAMPING, self.count)
        layer = self._layer(name)
        return amount(damping, name, layer.spectrum(), layer.damping, self.count)

    def solve(self, name: str, rows: Any, damping: Damping = None) -> Any:
        """Return ``(H + d)^-1 g`` for each row ``g`` of a layer, in float64.

        Rows are numpy, torch or JAX arrays, and so is the result. On devices without float64 numpy
        computes in float64, and the result is rounded to float32.
        """
        return self._scaled(name, rows, damping, power=1.0)

    def whiten(self, name: str, rows: Any, damping: Damping = None) -> Any:
        """Return ``(H + d)^-1/2 g`` for each row ``g`` of a layer.

        The dot product of two whitened rows is ``g^T (H + d)^-1 h``.
        """
        return self._scaled(name, rows, damping, power=0.5)

    def _scaled(self, name: str, rows: Any, damping: Damping, power: float) -> Any:
        device, values, back = _in_float64(rows)
        if self.kind == "identity":
            return back(values)
        layer, scale, rest = self._on_device(name, device, damping, power)
        return back(
            layer.scaled(checked_shape(name, layer, values), scale, rest).reshape(values.shape)
        )

    def quadratic(self, name: str, rows: Any, damping: Damping = None) -> Any:
        """Return ``g^T (H + d)^-1 g`` for each row, ``[n]``."""
        device, values, back = _in_float64(rows)
        if self.kind == "identity":
            return back((values**2).sum(tuple(range(1, values.ndim))))
        layer, scale, rest = self._on_device(name, device, damping, 1.0)
        return back(layer.weighed(checked_shape(name, layer, values), scale, rest))

    def _on_device(
        self, name: str, device: ArrayDevice, damping: Damping, power: float
    ) -> tuple[Layer, Any, float]:
        """Return a layer on a device, and the factors inside and outside of its basis."""
        layer, added = self._layer(name), self.added(name, damping)
        scale = inverse(layer.values, added, name) ** power
        rest = float(inverse(np.zeros(1), added, name)[0] ** power)
        if device == NUMPY:
            return layer, scale, rest
        if (name, device) not in self._moved:
            self._moved[name, device] = layer.to(device)
        return self._moved[name, device], device.put(scale), rest

    def transform_all(
        self, rows: LayerArrays, function: Callable[[str, np.ndarray], np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return ``f(H) g`` for the rows of all layers, in float64 with numpy.

        Args:
            rows: Gradients ``[n, ...]`` by layer.
            function: ``f(layer, eigenvalues)``, applied to the eigenvalues of each layer; negative
                ones, which result from rounding, are 0. The identity counts as ``H = 0``.
        """
        own = {name: to_numpy(values).astype(np.float64) for name, values in rows.items()}
        if self.joint is not None:
            return self.joint.transform(own, function)
        found = {}
        for name, values in own.items():
            if self.kind == "identity":
                found[name] = values * float(function(name, np.zeros(1))[0])
                continue
            layer = self._layer(name)
            scale = function(name, np.maximum(np.asarray(layer.values, np.float64), 0.0))
            rest = float(function(name, np.zeros(1))[0])
            turned = layer.scaled(checked_shape(name, layer, values), scale, rest)
            found[name] = turned.reshape(values.shape)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moved": {}}

    def solve_all(self, rows: LayerArrays, damping: Damping = None) -> dict[str, Any]:
        """Return ``(H + d)^-1 g`` for the rows of all layers, coupled or not."""
        if self.joint is None:
            return {name: self.solve(name, values, damping) for name, values in rows.items()}
        own = {name: to_numpy(values) for name, values in rows.items()}
        solved = self.joint.solve(own, {n: self.added(n, damping) for n in self.joint.shapes})
        return {name: device_of(rows[name]).put(values) for name, values in solved.items()}

    def quadratic_all(self, rows: LayerArrays, damping: Damping = None) -> dict[str, Any]:
        """Return what each layer contributes to ``g^T (H + d)^-1 g``, ``[n]``."""
        if self.joint is None:
            return {name: self.quadratic(name, values, damping) for name, values in rows.items()}
        solved = self.solve_all(rows, damping)
        axes = {name: tuple(range(1, values.ndim)) for name, values in solved.items()}
        return {name: (rows[name] * v).sum(axes[name]) for name, v in solved.items()}

    def save(self, path: StrPath, notes: Mapping[str, Any] | None = None) -> None:
        """Write the curvature to a store, replacing another one; :func:`load` reads it.

        The write is atomic, also if several processes save to the same path.

        Args:
            path: The folder of the store.
            notes: JSON values to save with it.

        Raises:
            ArgumentError: ``path`` is a store that does not contain a curvature.
            StoreExistsError: ``path`` exists and is not a store.
        """
        with (
            contextlib.suppress(StoreNotFoundError, ForeignStoreError),
            store.open(path, damaged="skip") as reader,  # a damaged one is replaced
        ):
            _check_curvature(reader)
        entries = {
            f"{name}@{part}": Entries(np.asarray(array)[None])
            for name, layer in self.layers.items()
            for part, array in layer.arrays().items()
        }
        meta: dict[str, Any] = {"curvature": self.kind, "count": self.count}
        meta |= {"layers": list(self.layers), "notes": dict(notes or {})}
        meta["provenance"] = [dict(each) for each in self.provenance]
        if self.joint is not None:
            entries[JOINT] = Entries(self.joint.matrix[None])
            meta["joint"] = self.joint.to_json()
        with (
            new_store(path) as aside,
            store.create(aside, meta=meta, interval=None) as writer,
        ):
            if entries:
                writer.write(Records(entries))


def _in_float64(rows: Any) -> tuple[ArrayDevice, Any, Callable[[Any], Any]]:
    """Return a device with float64, the rows on it, and a function that moves results back."""
    device = device_of(rows)
    if device == NUMPY:
        return device, np.asarray(rows, np.float64), lambda found: found
    if not device.doubles:
        return NUMPY, to_numpy(rows).astype(np.float64), lambda found: device.put(_single(found))
    xp = array_namespace(rows)
    return device, xp.astype(rows, xp.float64), lambda found: found


def _single(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32)


def checked_shape(name: str, layer: Layer, rows: Any) -> Any:
    """Reshape rows to the shape that a layer was fitted to.

    Raises:
        ArgumentError: They have another number of elements, or another order of them.
    """
    shape = layer.row_shape()
    if not same_layout(tuple(rows.shape[1:]), shape):
        raise ArgumentError(
            f"The curvature of the layer {name!r} is for gradients of the shape {list(shape)}, but "
            f"these have {list(rows.shape[1:])}. Hint: fit it to the logs that it is used with."
        )
    return rows.reshape(len(rows), *shape)


def load(path: StrPath) -> Curvature:
    """Load a curvature that was saved.

    Raises:
        StoreNotFoundError: ``path`` does not exist.
        ArgumentError: ``path`` is a store that does not contain a curvature.
    """
    return load_with_notes(path)[0]


def load_with_notes(path: StrPath) -> tuple[Curvature, dict[str, Any]]:
    """Load a curvature and the notes that were saved with it."""
    with store.open(path) as reader:
        _check_curvature(reader)
        with parsing(reader.path, "a curvature"):
            return _curvature_in(reader), dict(reader.meta["notes"])


def _curvature_in(reader: store.Reader) -> Curvature:
    kind, count = reader.meta["curvature"], reader.meta.get("count")
    of = reader.meta.get("provenance", ())
    if "joint" in reader.meta:
        joint = Joint.of(np.array(reader.read(JOINT)[0]), reader.meta["joint"])
        return Curvature(kind, {}, joint, count, of)
    parts: dict[str, dict[str, Any]] = {name: {} for name in reader.meta["layers"]}
    for series in reader.schema.series:
        name, _, part = series.column.name.rpartition("@")
        parts[name][part] = np.array(reader.read(series.column.name)[0])
    layers = {name: layer_from(arrays) for name, arrays in parts.items()}
    return Curvature(kind, layers, None, count, of)


def _check_curvature(reader: store.Reader) -> None:
    if "curvature" not in reader.meta:
        raise ArgumentError(
            f"The store at {reader.path} does not contain a curvature. Hint: curvature.save(path) "
            "writes one."
        )


IDENTITY = Curvature("identity", {})
