"""A loss and its terms as values of a tape."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from sawlog.torch._graph._autograd_graph import Edge, operation, root_of
from sawlog.torch._interactions._tape import NotRepeatable, Tape
from sawlog.torch._loss._terms import Term


@dataclasses.dataclass(frozen=True)
class TapedTerm:
    """A term of the loss.

    Args:
        number: its value on the tape.
        position: how many operations are before the first that uses it.
        labels: the example of each of its rows.
        grad: its gradient.
        counts: whether its scale depends on what the examples count.
        weighted: whether it is a mean with weights; rows have those of their example alone.
        own: whether changes of each example by a factor of its own count as none.
    """

    number: int
    position: int
    labels: Tensor
    grad: Tensor
    counts: bool
    weighted: bool
    own: bool = False


@dataclasses.dataclass(frozen=True)
class TapedLoss:
    """What a backward pass starts from.

    Args:
        tape: the operations of the batch.
        end: how many of them were before the backward pass.
        roots: the numbers of the losses.
        losses: their values.
        starts: their gradients.
        terms: the terms.
    """

    tape: Tape
    end: int
    roots: tuple[int, ...]
    losses: tuple[Tensor, ...]
    starts: tuple[Tensor, ...]
    terms: tuple[TapedTerm, ...]


def taped_loss(
    tape: Tape,
    losses: Sequence[tuple[Tensor, Tensor]],
    terms: Sequence[tuple[Term, Tensor]],
) -> TapedLoss:
    """Find a loss on a tape.

    Args:
        tape: the tape, up to the backward pass.
        losses: the tensors that the backward pass starts from, with their gradients.
        terms: the terms with their gradients.

    Raises:
        NotRepeatable: the tape does not have them.
    """
    end, found = len(tape.operations), []
    known: dict[Edge, int | None] = {root_of(loss): tape.known(loss) for loss, _ in losses}
    for term, grad in terms:
        node, output = term.edge
        number, position = tape.edges.get(
            (node._sequence_nr(), output, node.name()), (known.get(term.edge), end)
        )
        if number is None:
            raise NotRepeatable("a term of the loss that no recorded operation uses")
        counts = isinstance(term.scale, Tensor)
        join = operation(term.path[-1][0]) if term.path else ""
        weighted = counts or join in ("NllLoss", "NllLoss2D")
        found.append(TapedTerm(number, position, term.labels, grad, counts, weighted))
    roots = [known[root_of(loss)] for loss, _ in losses]
    there = tuple(each for each in roots if each is not None)
    if len(there) < len(roots):
        raise NotRepeatable("a loss that no recorded operation computed")
    values = tuple(loss.detach() for loss, _ in losses)
    return TapedLoss(tape, end, there, values, tuple(grad for _, grad in losses), tuple(found))
