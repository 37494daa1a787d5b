"""The error for examples that depend on each other."""

from __future__ import annotations

from collections.abc import Sequence

from sawlog.errors import MixedExamplesError
from sawlog.torch._graph._operations._weight_use import WeightUse

_REMEDY = (
    "Probably the loss compares examples (contrastive losses do), something is normalised over the "
    "batch, a hook of yours changes gradients, or the examples are along another axis. Hint: "
    "watch(model, batch_axis=1) if the sequence comes first; another batch size, if the number of "
    "positions, or a size of a weight that an adapter computes, is a multiple of it; leave the "
    "parameter out by names=; batches of one example."
)


def mixed_by_use(use: WeightUse, names: Sequence[str]) -> MixedExamplesError:
    """Return the error for an operation whose output mixes examples."""
    return MixedExamplesError(
        f"The parameter {names[0]!r} is used by an operation ({use.node.name()}) whose output "
        "mixes examples: what one example does there changes the loss of others, so they "
        f"have no gradients of their own. {_REMEDY}"
    )


def mixed_in_example(layer: str) -> MixedExamplesError:
    """Return the error for a term that is small for the batch, and not for one of its examples."""
    return MixedExamplesError(
        f"What other examples do changes the gradient of an example in the layer {layer!r}, whose "
        f"own gradient is small: an operation mixes examples. {_REMEDY}"
    )


def mixed_in_loss(name: str) -> MixedExamplesError:
    """Return the error for a parameter that meets mixed examples just before the loss."""
    return MixedExamplesError(
        f"The parameter {name!r} is joined with something of the examples by an "
        "operation whose output mixes examples: what one example does there changes the "
        f"loss of others, so they have no gradients of their own. {_REMEDY}"
    )
