"""Which layers of a store can be split by position, and why the others cannot."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import ml_dtypes
import numpy as np

from sawlog.capture import SCALE, Block, projections_of, ragged
from sawlog.errors import ArgumentError
from sawlog.influence._logs import Logs
from sawlog.influence._stored_factors import BIAS, MATRIX, TABLE, StoredCall, StoredFactors
from sawlog.store import Reader

_EXACT = {
    np.dtype(np.float64): 2**24,  # they were float32 before
    np.dtype(np.float32): 2**24,
    np.dtype(np.float16): 2**11,
    np.dtype(ml_dtypes.bfloat16): 2**8,
}
_FORWARD, _BACKWARD = "forward/", "backward/"

Shape = tuple[int, ...]


def stored_factors_of(logs: Logs) -> list[StoredFactors]:
    """How each layer of stored logs is split by position.

    Raises:
        ArgumentError: some cannot be; names them, and says why.
    """
    reader = logs.reader
    if reader is None or not {"blocks", "options"} <= set(reader.meta):
        where = "in memory" if reader is None else f"in the store at {reader.path}"
        raise ArgumentError(
            f"The logs {where} are not those of a run, so that both factors of the gradients are "
            "not known. Hint: give the store of a run, run.logs."
        )
    blocks = {each["name"]: Block.from_json(each) for each in reader.meta["blocks"]}
    projections, free = projections_of(reader), _without_weights(reader, blocks.values())
    splits, refused = [], {}
    for name in logs.layers:
        calls = _calls_of(reader, blocks[name]) if name in blocks else "it is no gradient"
        if isinstance(calls, str):
            refused[name] = calls
            continue
        count = _positions(reader, calls[0])
        others = _sharing(reader, blocks[name], free, count)
        splits.append(StoredFactors(blocks[name], calls, others, count, projections[name]))
    if refused:
        raise _refused(reader, refused, [split.block.name for split in splits])
    if len({split.positions for split in splits}) > 1:
        raise _of_different_lengths(splits)
    return splits


def _refused(reader: Reader, refused: Mapping[str, str], possible: Sequence[str]) -> ArgumentError:
    listed = "\n".join(f"  {name}: {why}" for name, why in refused.items())
    if possible:
        hint = f"names={list(possible)!r} chooses those that can be"
    else:
        hint = 'run.setup(log=["forward", "backward", "grad"]) stores both factors'
    return ArgumentError(
        f"The gradients of {len(refused)} layers in the store at {reader.path} cannot be split by "
        f"position, for lack of both factors:\n{listed}\nHint: {hint}."
    )


def _of_different_lengths(splits: Sequence[StoredFactors]) -> ArgumentError:
    by: dict[int, list[str]] = {}
    for split in splits:
        by.setdefault(split.positions, []).append(split.block.name)
    said = "; ".join(f"{n} in {', '.join(names[:5])}" for n, names in by.items())
    return ArgumentError(
        f"The layers do not have the same number of positions: {said}. Hint: choose layers of one "
        f"kind, as names={max(by.values(), key=len)!r}."
    )


# -- the calls of a layer -------------------------------------------------------------------------


def _calls_of(reader: Reader, block: Block) -> tuple[StoredCall, ...] | str:
    """The calls of a layer, or why it cannot be split."""
    module, _, parameter = block.name.rpartition(".")
    if parameter not in ("weight", "bias") or block.shape[:-2]:
        return "it is not that of a linear layer, an embedding or a bias"
    inputs, outputs = _columns(reader, _FORWARD + module), _columns(reader, _BACKWARD + module)
    if not outputs:
        return f"the gradients of its outputs, {_BACKWARD}{module}, were not stored"
    if parameter == "bias":
        inputs = [""] * len(outputs)
    elif not inputs:
        return f"its inputs, {_FORWARD}{module}, were not stored"
    elif reader.meta["options"].get("forward") == "output":
        return 'its outputs were stored as forward logs, not its inputs (forward="input")'
    elif len(inputs) != len(outputs):
        return f"it was called {len(inputs)} times, and {len(outputs)} gradients came back"
    calls = []
    for one, two in zip(inputs, reversed(outputs), strict=True):  # the last call comes back first
        kind = _kind(block, _shape(reader, one), _shape(reader, two))
        if kind is None:
            return _unfit(block, _shape(reader, one), _shape(reader, two))
        calls.append(StoredCall(kind, one, two, block.inputs))
    if len({_positions(reader, call) for call in calls}) > 1:
        return "it was called with different numbers of positions"
    if calls[0].kind == TABLE and not _exact(reader, block, calls[0]):
        dtype = reader.schema.column(calls[0].inputs).dtype
        return f"the numbers of its {block.rows} rows are not exact in {dtype}, as they are stored"
    return tuple(calls)


def _columns(reader: Reader, name: str) -> list[str]:
    """The columns of all calls of a layer, in order."""
    found = [name] if name in reader.names else []
    while found and f"{name}#{len(found) + 1}" in reader.names:
        found.append(f"{name}#{len(found) + 1}")
    return found


def _shape(reader: Reader, name: str) -> Shape:
    return tuple(reader.schema.column(name).shape) if name else ()


def _positions(reader: Reader, call: StoredCall) -> int:
    return math.prod(_shape(reader, call.outputs)[:-1])


def _exact(reader: Reader, block: Block, call: StoredCall) -> bool:
    dtype = np.dtype(reader.schema.column(call.inputs).dtype)
    return block.rows <= _EXACT.get(dtype, 0)


def _kind(block: Block, inputs: Shape, outputs: Shape) -> str | None:
    """What the logs of a call of the layer fit."""
    if block.name.rpartition(".")[2] == "bias":
        return BIAS if (block.cols, outputs[-1:]) == (1, (block.rows,)) else None
    return _kind_on(block, block.inputs, inputs, outputs)


def _kind_on(block: Block, side: str, inputs: Shape, outputs: Shape) -> str | None:
    """What the logs of a call fit, whose inputs are on a side of the block."""
    features, results = block.shape if side == "left" else block.shape[::-1]
    bias = len(block.parameters) - 1
    if outputs[-1:] != (results,):
        return None
    if inputs[-1:] == (features - bias,) and inputs[:-1] == outputs[:-1]:
        return MATRIX
    return TABLE if side == "left" and not bias and inputs == outputs[:-1] else None


def _unfit(block: Block, inputs: Shape, outputs: Shape) -> str:
    if block.cols == 1 and block.name.endswith("weight"):
        return "it is the scale of a normalization, whose normalized inputs are not stored"
    said = f"inputs {list(inputs)} and output gradients {list(outputs)} of each example"
    return f"{said} do not multiply to {list(block.shape)}, as those of a linear layer would"


# -- weights that layers share --------------------------------------------------------------------


def _without_weights(reader: Reader, blocks: Iterable[Block]) -> list[str]:
    """Layers that were logged and whose weight is no block of their own."""
    named = {parameter for block in blocks for parameter in block.parameters}
    columns = [name for name in reader.names if name.startswith(_FORWARD) and "#" not in name]
    columns = [name for name in columns if not ragged.is_part(name)]
    own = [n for n in columns if not n.endswith(SCALE) or n.removesuffix(SCALE) not in columns]
    modules = [name.removeprefix(_FORWARD) for name in own]
    return [module for module in modules if f"{module}.weight".lstrip(".") not in named]


def _sharing(
    reader: Reader, block: Block, modules: Sequence[str], positions: int
) -> tuple[StoredCall, ...]:
    """The calls of other layers that may have used the weight of a block; they need not have."""
    found = []
    if len(block.parameters) > 1 or block.name.rpartition(".")[2] != "weight":
        return ()
    for module in modules:
        inputs, outputs = _columns(reader, _FORWARD + module), _columns(reader, _BACKWARD + module)
        for one, two in zip(inputs, reversed(outputs), strict=False):
            shapes = _shape(reader, one), _shape(reader, two)
            sides = {side: _kind_on(block, side, *shapes) for side in ("right", "left")}
            calls = [StoredCall(kind, one, two, side) for side, kind in sides.items() if kind]
            if calls and _positions(reader, calls[0]) == positions:
                found.append(calls[0])
    return tuple(found)
