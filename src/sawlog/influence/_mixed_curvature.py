"""Curvature of training examples and queries together, and of gradients that are corrected."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from sawlog import curvature as curvatures
from sawlog._array_device import NUMPY, ArrayDevice
from sawlog._validate import positive_integer, refuse
from sawlog.curvature import KINDS, Curvature, Layer, needs_factors
from sawlog.curvature._corrected import Corrected, UnitMatrix, factors_of
from sawlog.errors import ArgumentError
from sawlog.influence._fitted_curvature import check_statistics
from sawlog.influence._logs import Logs
from sawlog.run_files._folders import measured_with

Scan = Callable[[], Iterator[Mapping[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Components:
    """A share of the curvature of the queries that lowers the weight of common components.

    Queries of one kind, such as questions of one form, share directions of their gradients that
    tell nothing about the single query. The share is chosen for each layer, so that the ``count``
    greatest eigenvalues of the queries' curvature exceed those of the training examples.

    Args:
        count: how many components to lower. There must be more queries than that.
    """

    count: int

    def __post_init__(self) -> None:
        positive_integer("count", self.count)

    def share(self, train: Layer, queries: Layer) -> float:
        """Return the share of the queries for a layer: the ``count``-th eigenvalues are equal."""
        ours, theirs = (self._eigenvalue(each) for each in (train, queries))
        return ours / (ours + theirs) if ours + theirs > 0 else 0.0

    def _eigenvalue(self, layer: Layer) -> float:
        ordered = np.sort(np.asarray(layer.values).ravel())[::-1]
        return float(ordered[min(self.count, len(ordered)) - 1]) if len(ordered) else 0.0


def mixed_curvature(
    logs: Logs,
    asked: Logs,
    kind: Any,
    second_moments: Mapping[str, Any] | None,
    mix: Any,
    *,
    budget: int,
    device: ArrayDevice = NUMPY,
    weights: str = "same",
) -> Curvature:
    """Fit a curvature to corrected gradients, or to training examples and queries together.

    Args:
        logs, asked: examples and queries.
        kind: one of :data:`sawlog.curvature.KINDS`.
        second_moments: those of an optimizer by layer, by whose root gradients are divided.
        mix: the share of the curvature of the queries, or :class:`Components`.
        budget, device, weights: as for :func:`attribute`.

    Raises:
        ArgumentError: the kind of curvature does not allow it, gradients are compressed, shapes
            differ, or an option is invalid.
    """
    _check_kind(kind, second_moments, mix)
    factors = None
    shapes = {name: _padded(shape) for name, (_, shape) in logs.shapes().items()}
    if second_moments is not None:
        for each in (logs, asked):
            if each.meta.get("options", {}).get("compress") is not None:
                raise ArgumentError(
                    "Second moments are those of single parameters, and the gradients are "
                    "compressed. Hint: log whole gradients; or correct them when they are logged."
                )
        factors = factors_of(second_moments, shapes)
    if kind == "identity":
        assert factors is not None
        units = {
            name: Corrected(UnitMatrix(np.ones_like(own)), own) for name, own in factors.items()
        }
        return Curvature("second-moments", units, None, len(logs), _provenance(logs))
    measured = None
    if needs_factors(kind) and logs.reader is not None:
        measured = measured_with(logs.reader)
        if weights == "same":
            check_statistics(logs, measured)

    def fit(scan: Scan) -> dict[str, Layer]:
        return curvatures.fit(kind, scan, measured, count=len(logs)).layers

    if mix is None:
        layers = fit(_scaled(logs, budget, device, factors))
    else:
        shares = _shares(mix, logs, asked, budget, factors, fit)
        layers = fit(_both(logs, asked, shares, budget, factors))
    if factors is not None:
        layers = {name: Corrected(layer, factors[name]) for name, layer in layers.items()}
    return Curvature(kind, layers, None, len(logs), _provenance(logs))


def _check_kind(kind: Any, second_moments: Any, mix: Any) -> None:
    if not isinstance(kind, str) or kind not in KINDS:
        raise ArgumentError(
            "`second_moments` and `mix` need a kind of curvature to fit, one of "
            f"{', '.join(map(repr, KINDS))}; got {kind!r:.100}."
        )
    if second_moments is not None and needs_factors(kind):
        raise ArgumentError(
            f"The factors of {kind!r} are those of gradients that are not corrected. Hint: "
            'curvature="fisher", "diagonal", "shampoo" or "identity" with second_moments=.'
        )
    if mix is None or isinstance(mix, Components):
        pass
    elif isinstance(mix, bool) or not isinstance(mix, (int, float)) or not 0 <= mix < 1:
        refuse("mix", "a share of at least 0 and below 1, or Components(count)", mix)
    if mix is not None and kind in ("identity", "kfac"):
        raise ArgumentError(
            f'{kind!r} is not fitted to rows, so it cannot be mixed. Hint: curvature="fisher".'
        )


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that rows have when they are read: at least two axes."""
    return (*shape, *(1,) * (2 - len(shape)))


def _provenance(logs: Logs) -> list[dict[str, Any]]:
    return [each.to_json() for each in logs.provenance]


def _scaled(
    logs: Logs,
    budget: int,
    device: ArrayDevice,
    factors: Mapping[str, np.ndarray] | None,
    weights: Mapping[str, float] | None = None,
) -> Scan:
    """Return a scan of rows times factors, and times the weight of their layer."""

    def scan() -> Iterator[Mapping[str, Any]]:
        for block in logs.scan(budget, device):
            found = dict(block)
            for name, rows in block.items():
                if factors is not None:
                    shape = (len(rows), *factors[name].shape)
                    found[name] = rows.reshape(shape) * device.put(factors[name])
                if weights is not None:
                    found[name] = found[name] * weights[name]
            yield found

    return scan


def _shares(
    mix: float | Components,
    logs: Logs,
    asked: Logs,
    budget: int,
    factors: Mapping[str, np.ndarray] | None,
    fit: Callable[[Scan], dict[str, Layer]],
) -> dict[str, float]:
    """Return the share of the queries for each layer."""
    if not isinstance(mix, Components):
        return {name: float(mix) for name in logs.layers}
    if len(asked) <= mix.count:
        raise ArgumentError(
            f"There are {len(asked)} queries, too few to find {mix.count} components that they "
            f"have in common. Hint: mix=Components({max(1, len(asked) // 10)}), a share such as "
            "mix=0.1, or more queries."
        )
    ours, theirs = (fit(_scaled(each, budget, NUMPY, factors)) for each in (logs, asked))
    return {name: mix.share(ours[name], theirs[name]) for name in logs.layers}


def _both(
    logs: Logs,
    asked: Logs,
    shares: Mapping[str, float],
    budget: int,
    factors: Mapping[str, np.ndarray] | None,
) -> Scan:
    """Return a scan of both, weighted so that mean squares are those of the mixture."""
    total = len(logs) + len(asked)
    ours = {name: math.sqrt((1 - share) * total / len(logs)) for name, share in shares.items()}
    theirs = {name: math.sqrt(share * total / len(asked)) for name, share in shares.items()}

    def scan() -> Iterator[Mapping[str, Any]]:
        yield from _scaled(logs, budget, NUMPY, factors, ours)()
        yield from _scaled(asked, budget, NUMPY, factors, theirs)()

    return scan
