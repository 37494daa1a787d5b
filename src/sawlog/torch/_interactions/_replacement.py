"""Replace some examples of a tensor by another one of the batch.

For a batch of four, ``Replacement(chosen=[True, True, False, False], source=3)`` overwrites the
examples 0 and 1 with example 3 in each :class:`ExampleTensor`. What is computed for the examples 2
and 3 must not change.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from sawlog.torch._graph._example_layout import ExampleLayout

_SMALL = 1e-2
_TIMES = (1.0, -4.0, 4.0)


@dataclasses.dataclass(frozen=True)
class ExampleTensor:
    """A recorded tensor of which it is known which elements belong to which example.

    Args:
        position: the number of operations that run before its examples are replaced.
        number: the number of the tensor on the tape.
        layout: where the examples are.
        given: whether it existed before, so that its memory belongs to the program.
    """

    position: int
    number: int
    layout: ExampleLayout
    given: bool = False


@dataclasses.dataclass(frozen=True)
class Replacement:
    """Which examples are replaced, and by what.

    Args:
        chosen: the examples to replace, a mask ``[batch]``.
        source: the example whose values they get; None changes their own by a little.
        times: what these values are multiplied by, if they are real or complex.
    """

    chosen: Tensor
    source: int | None
    times: float = 1.0

    def apply(self, value: Tensor, layout: ExampleLayout) -> Tensor:
        """Change a value in place, so that its views change too.

        Integers of positions stay: others would have other padding, and so count otherwise.
        """
        with torch.no_grad():
            rows = layout.split(value.data, len(self.chosen))  # counts as no change
            chosen = self.chosen.to(value.device)
            if self.source is not None:
                if value.is_floating_point() or value.is_complex():
                    rows[chosen] = rows[self.source] * self.times
                elif value.dim() == 1:
                    rows[chosen] = rows[self.source].clone()
            elif value.is_floating_point():
                own = rows[chosen]
                generator = torch.Generator().manual_seed(1)
                noise = torch.randn(own.shape, generator=generator, dtype=torch.float64)
                rows[chosen] = own + own * _SMALL * noise.to(own)
        return value


def halves(losses: Tensor) -> tuple[Replacement, Replacement]:
    """Return two replacements that together replace every example.

    One half becomes the example with the greatest value in the loss, and the other half the one
    with the smallest, so that ranks and extremes of the batch change.

    Args:
        losses: a number of each example, such as its loss.
    """
    batch, order = len(losses), losses.nan_to_num().argsort().tolist()
    generator = torch.Generator().manual_seed(batch)
    inner = [order[i] for i in (1 + torch.randperm(batch - 2, generator=generator)).tolist()]
    keeps_greatest = [order[-1], *inner[: (batch - 2) // 2]]
    first = torch.ones(batch, dtype=torch.bool)
    first[keeps_greatest] = False
    return Replacement(first, order[-1]), Replacement(~first, order[0])


def further(batch: int, count: int) -> list[Replacement]:
    """Return random replacements, which may change decisions that :func:`halves` did not.

    Two thirds make values larger, half of them with the other sign: where labels decide which of
    two losses is greater, the values of other examples do not change that.
    """
    generator = torch.Generator().manual_seed(batch)
    found = []
    for turn in range(count):
        order = torch.randperm(batch, generator=generator)
        stays = max(1, batch // 2 if turn % 2 else batch // 4)
        chosen = torch.ones(batch, dtype=torch.bool)
        chosen[order[:stays]] = False
        times = _TIMES[turn // 2 % len(_TIMES)]  # with few and with many examples that stay
        found.append(Replacement(chosen, int(order[0]), times))
    return found


def is_separate(value: Tensor) -> bool:
    """Return whether no two elements of a tensor share memory."""
    return all(size < 2 or step for size, step in zip(value.shape, value.stride(), strict=True))
