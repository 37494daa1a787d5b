"""Uses by some of the examples each, put together to uses by all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from sawlog.errors import CaptureError
from sawlog.jax._capture.attaching import Recorded


@dataclasses.dataclass
class _Use:
    """A use by the examples that were found so far, with its inputs and cotangents."""

    record: Recorded
    inputs: Any
    cotangents: Any
    examples: set[int]


def uses_of_all(
    records: Sequence[Recorded], factors: Sequence[Any], examples: int
) -> list[tuple[Recorded, Any, Any]]:
    """Return uses by the whole batch, each with its inputs and cotangents.

    The factors of a use by some of the examples are zero for the others. Where one half of the
    batch uses a layer and then the other half does, the factors of both are added up.

    Args:
        records: The uses of one block.
        factors: What the zeros of all uses received.
        examples: The number of examples of the batch.
    """
    found: list[_Use] = []
    for record in records:
        assert record.zeros is not None
        inputs, cotangents = (factors[i] for i in record.zeros)
        chosen = set(range(examples)) if record.cut is None else set(record.cut)
        partner = next((use for use in found if _fits(use, record, inputs, cotangents)), None)
        if partner is None:
            found.append(_Use(record, inputs, cotangents, chosen))
            continue
        partner.inputs, partner.cotangents = (
            partner.inputs + inputs,
            partner.cotangents + cotangents,
        )
        partner.examples |= chosen
    for use in found:
        if len(use.examples) < examples:
            raise CaptureError(
                f"The parameter {', '.join(use.record.names)} is used by some of the examples at "
                f"{use.record.where}; others do not use it, or in other ways, so it has no "
                "factors of the whole batch. Hint: capture its gradients alone, what=('grad',)."
            )
    return [(use.record, use.inputs, use.cotangents) for use in found]


def _fits(use: _Use, record: Recorded, inputs: Any, cotangents: Any) -> bool:
    """Return whether two uses are the same but for their examples."""
    if not record.cut or use.examples & set(record.cut):
        return False
    one, two = use.record, record
    same = (one.sides, one.lookup, one.loops) == (two.sides, two.lookup, two.loops)
    return same and (use.inputs.shape, use.cotangents.shape) == (inputs.shape, cotangents.shape)
