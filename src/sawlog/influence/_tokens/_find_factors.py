"""Find the stored factors of each layer, or say why it cannot be split by position."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import ml_dtypes
import numpy as np

from sawlog.errors import ArgumentError
from sawlog.influence._logs import Logs
from sawlog.influence._tokens._stored_factors import BIAS, MATRIX, TABLE, StoredCall, StoredFactors
from sawlog.run_files import ragged
from sawlog.run_files._blocks import Block
from sawlog.run_files._encode import SCALE
from sawlog.run_files._log_names import LogName
from sawlog.run_files._projections import projections_of
from sawlog.store import Reader

#: The greatest table whose row numbers are exact in a dtype.
_EXACT = {
    np.dtype(np.float64): 2**24,  # converted from float32
    np.dtype(np.float32): 2**24,
    np.dtype(np.float16): 2**11,
    np.dtype(ml_dtypes.bfloat16): 2**8,
}
Shape = tuple[int, ...]


def find_stored_factors(logs: Logs) -> list[StoredFactors]:
    """Return the stored factors of each layer.

    Raises:
        ArgumentError: the logs are not in the store of a run, or some layers cannot be split by
            position; lists them and the reasons.
    """
    reader = logs.reader
    if reader is None or not {"blocks", "options"} <= set(reader.meta):
        where = "in memory" if reader is None else f"in the store at {reader.path}"
        raise ArgumentError(
            f"The logs {where} do not belong to a run, so the factors of their gradients are "
            "unknown. Hint: pass the store of a run, run.store_path."
        )
    blocks = {each["name"]: Block.from_json(each) for each in reader.meta["blocks"]}
    projections = projections_of(reader)
    modules = _modules_without_weights(reader, blocks.values())
    found, refused = [], {}
    for name in logs.layers:
        calls = _calls_of(reader, blocks[name]) if name in blocks else "it is not a gradient"
        if isinstance(calls, str):
            refused[name] = calls
            continue
        count = _positions(reader, calls[0])
        others = _sharing(reader, blocks[name], modules, count)
        found.append(StoredFactors(blocks[name], calls, others, count, projections[name]))
    if refused:
        raise _refused(reader, refused, [layer.block.name for layer in found])
    if len({layer.positions for layer in found}) > 1:
        raise _different_positions(found)
    return found


def _refused(reader: Reader, refused: Mapping[str, str], possible: Sequence[str]) -> ArgumentError:
    listed = "\n".join(f"  {name}: {why}" for name, why in refused.items())
    if possible:
        hint = f"names={list(possible)!r} chooses the others"
    else:
        hint = 'run.setup(log=["forward", "backward", "grad"]) stores both factors'
    return ArgumentError(
        f"The gradients of {len(refused)} layers in the store at {reader.path} cannot be split by "
        f"position, which needs both factors:\n{listed}\nHint: {hint}."
    )


def _different_positions(found: Sequence[StoredFactors]) -> ArgumentError:
    by: dict[int, list[str]] = {}
    for layer in found:
        by.setdefault(layer.positions, []).append(layer.block.name)
    listed = "; ".join(f"{n} in {', '.join(names[:5])}" for n, names in by.items())
    return ArgumentError(
        f"The layers have different numbers of positions: {listed}. Hint: choose layers of one "
        f"kind, such as names={max(by.values(), key=len)!r}."
    )


# -- the calls of a layer -------------------------------------------------------------------------


def _calls_of(reader: Reader, block: Block) -> tuple[StoredCall, ...] | str:
    """Return the calls of a layer, or why it cannot be split."""
    module, _, parameter = block.name.rpartition(".")
    if str(LogName("backward", block.name)) in reader.names:  # as runs of JAX functions name it
        module, parameter = block.name, "weight"
    if parameter not in ("weight", "bias") or block.shape[:-2]:
        return "it is not the gradient of a linear layer, an embedding or a bias"
    inputs, outputs = _calls(reader, "forward", module), _calls(reader, "backward", module)
    if not outputs:
        return f"the gradients of its outputs, {LogName('backward', module)}, were not stored"
    if parameter == "bias":
        inputs = [""] * len(outputs)
    elif not inputs:
        return f"its inputs, {LogName('forward', module)}, were not stored"
    elif reader.meta["options"].get("forward") == "output":
        return 'its outputs were stored as forward logs, not its inputs (forward="input")'
    elif len(inputs) != len(outputs):
        return f"it was called {len(inputs)} times, but has {len(outputs)} output gradients"
    calls = []
    for one, two in zip(inputs, reversed(outputs), strict=True):  # backward runs in reverse
        kind = _kind(block, _shape(reader, one), _shape(reader, two))
        if kind is None:
            return _why_unfit(block, _shape(reader, one), _shape(reader, two))
        calls.append(StoredCall(kind, one, two, block.inputs))
    if len({_positions(reader, call) for call in calls}) > 1:
        return "it was called with different numbers of positions"
    if calls[0].kind == TABLE and not _exact(reader, block, calls[0]):
        dtype = reader.schema.column(calls[0].inputs).dtype
        return f"the indices of its {block.rows} rows are not exact in {dtype}, the stored dtype"
    return tuple(calls)


def _calls(reader: Reader, kind: str, module: str) -> list[str]:
    """Return the columns of all calls of a module, in order."""
    found: list[str] = []
    while (name := str(LogName(kind, module, len(found) + 1))) in reader.names:
        found.append(name)
    return found


def _shape(reader: Reader, name: str) -> Shape:
    return tuple(reader.schema.column(name).shape) if name else ()


def _positions(reader: Reader, call: StoredCall) -> int:
    return math.prod(_shape(reader, call.outputs)[:-1])


def _exact(reader: Reader, block: Block, call: StoredCall) -> bool:
    dtype = np.dtype(reader.schema.column(call.inputs).dtype)
    return block.rows <= _EXACT.get(dtype, 0)


def _kind(block: Block, inputs: Shape, outputs: Shape) -> str | None:
    """Return the kind of call that stored shapes match; None if they match none."""
    if not inputs and block.name.rpartition(".")[2] == "bias":
        return BIAS if (block.cols, outputs[-1:]) == (1, (block.rows,)) else None
    return _kind_on(block, block.inputs, inputs, outputs)


def _kind_on(block: Block, side: str, inputs: Shape, outputs: Shape) -> str | None:
    """Return the kind of call whose inputs are the left or right factor of the block."""
    features, results = block.shape if side == "left" else block.shape[::-1]
    bias = len(block.parameters) - 1
    if outputs[-1:] != (results,):
        return None
    if inputs[-1:] == (features - bias,) and inputs[:-1] == outputs[:-1]:
        return MATRIX
    return TABLE if side == "left" and not bias and inputs == outputs[:-1] else None


def _why_unfit(block: Block, inputs: Shape, outputs: Shape) -> str:
    if block.cols == 1 and block.name.endswith("weight"):
        return "it is the scale of a normalization, whose normalized inputs are not stored"
    shapes = f"inputs {list(inputs)} and output gradients {list(outputs)} of each example"
    return f"{shapes} do not multiply to {list(block.shape)}, as those of a linear layer would"


# -- shared weights --------------------------------------------------------------------------------


def _modules_without_weights(reader: Reader, blocks: Iterable[Block]) -> list[str]:
    """Return the logged modules whose weight is not a block of their own."""
    named = {parameter for block in blocks for parameter in block.parameters}
    columns = {name for name in reader.names if not ragged.is_part(name)}
    found = []
    for column in reader.names:
        name = LogName.parse(column)
        if column not in columns or name is None or (name.kind, name.call) != ("forward", 1):
            continue
        if column.endswith(SCALE) and column.removesuffix(SCALE) in columns:
            continue
        if not {f"{name.layer}.weight".lstrip("."), name.layer} & named:
            found.append(name.layer)
    return found


def _sharing(
    reader: Reader, block: Block, modules: Sequence[str], positions: int
) -> tuple[StoredCall, ...]:
    """Return the calls of other modules that may share the weight of a block, by their shapes."""
    found = []
    if len(block.parameters) > 1 or block.name.rpartition(".")[2] != "weight":
        return ()
    for module in modules:
        inputs, outputs = _calls(reader, "forward", module), _calls(reader, "backward", module)
        for one, two in zip(inputs, reversed(outputs), strict=False):
            shapes = _shape(reader, one), _shape(reader, two)
            sides = {side: _kind_on(block, side, *shapes) for side in ("right", "left")}
            calls = [StoredCall(kind, one, two, side) for side, kind in sides.items() if kind]
            if calls and _positions(reader, calls[0]) == positions:
                found.append(calls[0])
    return tuple(found)
