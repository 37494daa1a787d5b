"""Collectives inside of ``shard_map``, where the examples may be spread over the devices."""

from __future__ import annotations

from typing import Any

from sawlog.jax import _compat
from sawlog.jax._capture.axes import Axis, Mixed, Place, Split
from sawlog.jax._capture.axis_rules.table import SUM, Followed, FollowedOperands, axis_rule


@axis_rule("psum", "psum_invariant", "pmax", "pmin", "pbroadcast")
def elementwise(eqn: Any, operands: FollowedOperands) -> Followed:
    """Combine the same element of all devices."""
    if not operands.mesh & _compat.collective_axes(eqn):
        return Followed(operands.places)
    sums = eqn.primitive.name in ("psum", "psum_invariant")
    mixed = SUM if sums else Mixed("combines the examples of several devices")
    return Followed(tuple(_replaced(place, mixed) for place in operands.places))


@axis_rule("all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all", "ppermute")
def moving(eqn: Any, operands: FollowedOperands) -> Followed:
    """Move values between devices: over other devices, examples in another dimension stay."""
    if operands.mesh & _compat.collective_axes(eqn):
        mixed = Mixed("moves examples between devices")
        return Followed(tuple(_replaced(place, mixed) for place in operands.places))
    if eqn.primitive.name == "ppermute":
        return Followed(operands.places)
    return Followed(tuple(_moved(eqn, place) for place in operands.places))


def _moved(eqn: Any, place: Place) -> Place:
    """Return the examples of a value whose other dimensions are gathered or scattered."""
    if not isinstance(place, Axis):
        return place
    dims = _compat.moved_dimensions(eqn)
    if dims is None:
        return Mixed("gathers or scatters along a new dimension: only tiled=True is followed")
    return Mixed("moves parts along the dimension of the examples") if place.dim in dims else place


def _replaced(place: Place, mixed: Mixed) -> Place:
    return mixed if isinstance(place, (Axis, Split)) else place
