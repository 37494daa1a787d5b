"""Scores of single positions: which words of a training example it was."""

from __future__ import annotations

from typing import Any

import numpy as np

from sawlog.capture import Block
from sawlog.curvature import Curvature, Damping
from sawlog.errors import ArgumentError
from sawlog.influence._fitted import curvature_for
from sawlog.influence._logs import Logs
from sawlog.store import Reader
from sawlog.store import open as open_store


def token_scores(
    train: Any,
    queries: Any,
    ids: Any,
    *,
    curvature: str | Curvature = "ekfac",
    damping: Damping = None,
) -> np.ndarray:
    """The scores of each position of some examples for queries, ``[queries, examples, positions]``.

    The gradient of a linear layer is a sum over positions, so its score is. The store needs both
    factors of it: ``run.setup(log=["forward", "backward", "grad"])`` without compression. Over
    positions the scores add up to those of :func:`attribute` for these layers.

    Raises:
        ArgumentError: the store does not have both factors of any layer.
    """
    reader = train if isinstance(train, Reader) else open_store(train)
    blocks = {each["name"]: Block.from_json(each) for each in reader.meta.get("blocks", [])}
    layers = [name for name, block in blocks.items() if _has_factors(reader, block)]
    if not layers:
        raise ArgumentError(
            f"The store at {reader.path} has no layer with both factors of its gradients. Hint: "
            'run.setup(log=["forward", "backward", "grad"]), without compress.'
        )
    fitted = curvature_for(Logs(reader), curvature)
    asked = Logs(queries, names=layers).whole().rows()
    everything = fitted.solve_all(asked, damping)
    total: Any = 0.0
    for name in layers:
        block, module = blocks[name], name.rpartition(".")[0]
        rows = reader.gather(ids, [f"forward/{module}", f"backward/{module}"])
        inputs = np.asarray(rows[f"forward/{module}"], np.float64)
        outputs = np.asarray(rows[f"backward/{module}"], np.float64)
        inputs, outputs = (x if x.ndim == 3 else x[:, None] for x in (inputs, outputs))
        if len(block.parameters) > 1:
            inputs = np.concatenate([inputs, np.ones_like(inputs[..., :1])], -1)
        solved = everything[name]
        if block.inputs == "left":
            inputs, outputs = outputs, inputs
        total = total + np.einsum("qoi,nto,nti->qnt", solved, outputs, inputs, optimize=True)
    return np.asarray(total)


def _has_factors(reader: Reader, block: Block) -> bool:
    module = block.name.rpartition(".")[0]
    names = (f"forward/{module}", f"backward/{module}")
    if len(block.shape) != 2 or block.cols == 1 or any(block.ranks):
        return False
    if not all(name in reader.names for name in names):
        return False
    sizes = [reader.schema.column(name).shape[-1:] for name in names]
    bias = len(block.parameters) - 1
    inputs, outputs = (block.cols, block.rows) if block.inputs == "right" else block.shape
    return sizes == [(inputs - bias,), (outputs,)]
