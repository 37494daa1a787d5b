"""``Curvature``: what gradients are preconditioned with, layer by layer."""

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
from sawlog.curvature._layer import Layer, layer_from, same_layout
from sawlog.errors import ArgumentError, ForeignStoreError, StoreNotFoundError
from sawlog.records import Entries, Records
from sawlog.store._removal import new_store

StrPath = str | os.PathLike[str]
Rows = Mapping[str, Any]
JOINT = "@matrix"


class Curvature:
    """A symmetric matrix over gradients, block by block, that can be inverted with any damping.

    Args:
        kind: what it is: ``"fisher"``, ``"kfac"`` and so on.
        layers: the curvature of each layer, by its name; that of ``"identity"`` has none.
        joint: one matrix over all layers together, in their place.
        count: how many examples it was fitted to; None if it was not.
        provenance: what it was computed with, as the notes of logs have it
            (:class:`sawlog.capture.Provenance`); empty if that is not known.

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
            return amount(damping, name, self.joint.spectrum(name), JOINT_DAMPING, self.count)
        layer = self._layer(name)
        return amount(damping, name, layer.spectrum(), layer.damping, self.count)

    def solve(self, name: str, rows: Any, damping: Damping = None) -> Any:
        """``(H + d)^-1 g`` for each row ``g`` of a layer, in float64.

        Rows are arrays of numpy, torch or JAX, and so is what is returned; where there is no
        float64, it is computed by numpy, and given back with the digits that there are.
        """
        return self._scaled(name, rows, damping, power=1.0)

    def whiten(self, name: str, rows: Any, damping: Damping = None) -> Any:
        """``(H + d)^-1/2 g``: dots of two such are those of one with the other solved."""
        return self._scaled(name, rows, damping, power=0.5)

    def _scaled(self, name: str, rows: Any, damping: Damping, power: float) -> Any:
        place, values, back = _doubles(rows)
        if self.kind == "identity":
            return back(values)
        layer, scale, rest = self._there(name, place, damping, power)
        return back(layer.scaled(fitting(name, layer, values), scale, rest).reshape(values.shape))

    def quadratic(self, name: str, rows: Any, damping: Damping = None) -> Any:
        """``g^T (H + d)^-1 g`` for each row, ``[n]``."""
        place, values, back = _doubles(rows)
        if self.kind == "identity":
            return back((values**2).sum(tuple(range(1, values.ndim))))
        layer, scale, rest = self._there(name, place, damping, 1.0)
        return back(layer.weighed(fitting(name, layer, values), scale, rest))

    def _there(
        self, name: str, place: ArrayDevice, damping: Damping, power: float
    ) -> tuple[Layer, Any, float]:
        """A layer in some place, and what its directions and those outside are multiplied with."""
        layer, added = self._layer(name), self.added(name, damping)
        scale = inverse(layer.values, added, name) ** power
        rest = float(inverse(np.zeros(1), added, name)[0] ** power)
        if place == NUMPY:
            return layer, scale, rest
        if (name, place) not in self._moved:
            self._moved[name, place] = layer.to(place)
        return self._moved[name, place], place.put(scale), rest

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_moved": {}}

    def solve_all(self, rows: Rows, damping: Damping = None) -> dict[str, Any]:
        """``(H + d)^-1 g`` of all layers, whether the curvature couples them or not."""
        if self.joint is None:
            return {name: self.solve(name, values, damping) for name, values in rows.items()}
        own = {name: to_numpy(values) for name, values in rows.items()}
        solved = self.joint.solve(own, {n: self.added(n, damping) for n in self.joint.shapes})
        return {name: device_of(rows[name]).put(values) for name, values in solved.items()}

    def quadratic_all(self, rows: Rows, damping: Damping = None) -> dict[str, Any]:
        """What each layer adds to ``g^T (H + d)^-1 g``, ``[n]``."""
        if self.joint is None:
            return {name: self.quadratic(name, values, damping) for name, values in rows.items()}
        solved = self.solve_all(rows, damping)
        axes = {name: tuple(range(1, values.ndim)) for name, values in solved.items()}
        return {name: (rows[name] * v).sum(axes[name]) for name, v in solved.items()}

    def save(self, path: StrPath, notes: Mapping[str, Any] | None = None) -> None:
        """Write it to a store, with notes that JSON can hold; :func:`load` reads it.

        It is there as a whole or not at all, whoever else saves one to the same path.

        Raises:
            ArgumentError: there is a store of something else.
            StoreExistsError: there is something that is no store.
        """
        with (
            contextlib.suppress(StoreNotFoundError, ForeignStoreError),
            store.open(path, damaged="skip") as reader,  # a damaged one is replaced as well
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


def _doubles(rows: Any) -> tuple[ArrayDevice, Any, Callable[[Any], Any]]:
    """Where to compute with rows, the rows there in float64, and the way back."""
    place = device_of(rows)
    if place == NUMPY:
        return place, np.asarray(rows, np.float64), lambda found: found
    if not place.doubles:
        return NUMPY, to_numpy(rows).astype(np.float64), lambda found: place.put(_single(found))
    xp = array_namespace(rows)
    return place, xp.astype(rows, xp.float64), lambda found: found


def _single(array: np.ndarray) -> np.ndarray:
    return np.asarray(array, np.float32)


def fitting(name: str, layer: Layer, rows: Any) -> Any:
    """Rows in the shape that a layer was fitted to.

    Raises:
        ArgumentError: they have other elements, or the same in another order.
    """
    shape = layer.row_shape()
    if not same_layout(tuple(rows.shape[1:]), shape):
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
        _check_curvature(reader)
        kind, count = reader.meta["curvature"], reader.meta.get("count")
        of = reader.meta.get("provenance", ())
        if "joint" in reader.meta:
            joint = Joint.of(np.array(reader.read(JOINT)[0]), reader.meta["joint"])
            return Curvature(kind, {}, joint, count, of), reader.meta["notes"]
        parts: dict[str, dict[str, Any]] = {name: {} for name in reader.meta["layers"]}
        for series in reader.schema.series:
            name, _, part = series.column.name.rpartition("@")
            parts[name][part] = np.array(reader.read(series.column.name)[0])
        layers = {name: layer_from(arrays) for name, arrays in parts.items()}
        return Curvature(kind, layers, None, count, of), reader.meta["notes"]


def _check_curvature(reader: store.Reader) -> None:
    if "curvature" not in reader.meta:
        raise ArgumentError(f"{reader.path} is the store of something else than a curvature.")


IDENTITY = Curvature("identity", {})
