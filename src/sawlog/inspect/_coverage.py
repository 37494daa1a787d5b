"""``Coverage``: which parameters of a model a capture run watches."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import sawlog.store
from sawlog.errors import SawlogError
from sawlog.inspect._store_folders import run_file, stores_under
from sawlog.run_files._blocks import Block
from sawlog.run_files._encode import row_bytes
from sawlog.run_files._provenance import noted
from sawlog.store._format import _parse


@dataclasses.dataclass(frozen=True)
class WatchedLayer:
    """A layer that is watched.

    Args:
        name: that of its weight.
        parameters: how many parameters it has.
        shape: the shape of its gradient.
        stored: the shape of what is stored for each example.
        nbytes: the bytes that are stored for each example.
    """

    name: str
    parameters: int
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    nbytes: int


@dataclasses.dataclass(frozen=True)
class Coverage:
    """What a capture run watches of its model.

    Args:
        layers: the layers that are watched.
        parameters: how many parameters the model has; None if the run does not say.
        skipped: the names of parameters that are not watched, and why; None if unknown.
        weights: the fingerprints of the weights that rows were computed with.
    """

    layers: tuple[WatchedLayer, ...]
    parameters: int | None
    skipped: tuple[tuple[str, str], ...] | None
    weights: tuple[str, ...]

    @property
    def watched(self) -> int:
        """How many parameters are watched."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def share(self) -> float | None:
        """The share of parameters that are watched; None if unknown."""
        return self.watched / self.parameters if self.parameters else None

    def to_json(self) -> dict[str, Any]:
        """Return the fields in types of JSON."""
        return {
            "watched": self.watched,
            "parameters": self.parameters,
            "share": self.share,
            "skipped": None if self.skipped is None else [list(each) for each in self.skipped],
            "weights": list(self.weights),
            "layers": [
                {
                    "name": layer.name,
                    "parameters": layer.parameters,
                    "shape": list(layer.shape),
                    "stored": list(layer.stored),
                    "bytes": layer.nbytes,
                }
                for layer in self.layers
            ],
        }


def coverage_of(folder: Path) -> Coverage | None:
    """Return what the capture run at ``folder`` watches; None if the run does not say."""
    try:
        said = run_file(folder)
        if said is None:
            return None
        blocks = [Block.from_json(each) for each in said["blocks"]]
        dtype = str(said["options"].get("dtype", "float32"))
        layers = tuple(_layer(block, dtype) for block in blocks)
        skipped = said.get("skipped")
        return Coverage(
            layers,
            _parameters(said.get("parameters")),
            None if skipped is None else tuple((str(n), str(why)) for n, why in skipped),
            tuple(_weights(folder)),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def _parameters(said: Any) -> int | None:
    return None if said is None else _parse.integer(said, "'parameters'")


def _layer(block: Block, dtype: str) -> WatchedLayer:
    size = row_bytes(block.elements, dtype)
    return WatchedLayer(block.name, math.prod(block.shape), block.shape, block.stored, size)


def _weights(folder: Path) -> list[str]:
    found: dict[str, None] = {}
    for path in stores_under(folder / "logs"):
        try:
            with sawlog.store.open(path) as reader:
                found.update(dict.fromkeys(each.weights for each in noted(reader)))
        except (SawlogError, OSError):
            continue
    return list(found)
