"""The blocks that ``backward(inputs=...)`` asks for; others get no gradient from it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sawlog.errors import CaptureError
from sawlog.torch._model._watched import Watched


def asked_blocks(watched: Watched, inputs: Sequence[Tensor] | None) -> frozenset[str] | None:
    """Return the names of the blocks whose gradients are requested; None is all of them.

    Raises:
        CaptureError: a part of a block is.
    """
    if inputs is None:
        return None
    ids, found = {id(each) for each in inputs}, set[str]()
    for block in watched.blocks:
        missing = [name for name in block.parameters if id(watched.parameters[name]) not in ids]
        if not missing:
            found.add(block.name)
        elif len(missing) < len(block.parameters):
            raise CaptureError(
                f"backward(inputs=...) asks for a part of {list(block.parameters)}, which are "
                f"logged as one matrix: {missing[0]!r} is not in `inputs`. Hint: ask for all of "
                "them; or watch only those that are requested, by names=."
            )
    return frozenset(found)
