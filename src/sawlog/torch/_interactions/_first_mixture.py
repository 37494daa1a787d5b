"""Find the operation that mixes examples."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Sequence

import torch
from torch import Tensor

from sawlog.torch._interactions._compare import ChangeLimits
from sawlog.torch._interactions._flow import name_of, needed
from sawlog.torch._interactions._loss_on_tape import TapedLoss
from sawlog.torch._interactions._replacement import ExampleTensor, Replacement
from sawlog.torch._interactions._replay import TapeReplay
from sawlog.torch._interactions._replayed_loss import stop_to_replace


@dataclasses.dataclass(frozen=True)
class Mixture:
    """An operation that mixes examples.

    Args:
        name: its name.
        line: the file and the line of the program.
    """

    name: str
    line: tuple[str, int]

    def __str__(self) -> str:
        file, number = self.line
        code = linecache.getline(file, number).strip() if file else ""
        where = f" of {file}:{number}" if file else ""
        return f"{self.name!r}{where}" + (f", `{code}`" if code else "")


def first_mixture(
    loss: TapedLoss,
    tensors: Sequence[ExampleTensor],
    replacements: Sequence[Replacement],
    limits: ChangeLimits,
) -> Mixture | None:
    """Return the first operation with an element that depends on two halves of the batch.

    Args:
        loss: the loss; only operations that its terms depend on count.
        tensors: where examples are replaced.
        replacements: changes of two halves.
        limits: from which size a change counts.
    """
    needed_operations, numbers = needed(loss, [each.number for each in loss.terms])
    replays = [TapeReplay(loss.tape, loss.end, loss.roots) for _ in range(3)]
    with torch.no_grad():
        walks = [replays[0].steps()]
        for replay, replacement in zip(replays[1:], replacements, strict=True):
            walks.append(replay.steps([stop_to_replace(tensor, replacement) for tensor in tensors]))
        for (index, operation, plain), *others in zip(*walks, strict=True):
            if index not in needed_operations:
                continue
            found = zip(operation.outputs, plain, *(each for _, _, each in others), strict=True)
            for number, *values in found:
                if number in numbers and _is_mixed(*values, limits=limits):
                    return Mixture(name_of(operation), operation.line)
    return None


def _is_mixed(plain: Tensor, one: Tensor, two: Tensor, *, limits: ChangeLimits) -> bool:
    """Return whether some element differs in both replays."""
    if not plain.shape == one.shape == two.shape or not plain.numel():
        return False
    if not plain.is_floating_point():
        return bool(((plain != one) & (plain != two)).any())
    own = plain.double()
    changed = []
    for each in (one, two):
        change = (each.double() - own).abs().nan_to_num()
        least = limits.share * change.amax() + limits.rounding * own.abs().nan_to_num()
        changed.append(change > least)
    return bool((changed[0] & changed[1]).any())
