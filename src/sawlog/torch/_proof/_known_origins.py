"""What the recorded operations of a batch say of the nodes of its graph.

It holds for further graphs of the structure, which are not recorded, where they pick by the same
indices.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from sawlog.torch._graph._autograd_graph import Graph, Node
from sawlog.torch._graph._weight_uses import indices_of
from sawlog.torch._interactions._origins import Origins
from sawlog.torch._interactions._recorder import Recorder
from sawlog.torch._model._watched import Watched


@dataclasses.dataclass(frozen=True)
class _Origin:
    """Whether a node is of parameters and constants alone, and the indices it picked by."""

    of_all: bool
    indices: tuple[Tensor, ...]


def known_origins(
    watched: Watched, graph: Graph, recorder: Recorder | None, batch: int
) -> Mapping[Node, bool]:
    """Return whether nodes depend on parameters and constants alone, where that is known."""
    tape = None if recorder is None else recorder.tape
    every: dict[int, _Origin] | None = None
    if tape is not None and watched.tensors is not None:
        found = Origins(tape, watched.tensors, batch).of_nodes(graph.nodes)
        every = {
            number: _Origin(of_all, tuple(map(_copy, indices_of(graph.nodes[number]))))
            for number, of_all in found.items()
        }
        watched.origins[graph.structure] = every
    else:
        every = watched.origins.get(graph.structure, {})
    return {
        graph.nodes[number]: origin.of_all
        for number, origin in (every or {}).items()
        if _are_equal(origin.indices, graph.nodes[number])
    }


def once_for_all(watched: Watched, recorder: Recorder | None, batch: int) -> set[int]:
    """Return the numbers of the layer calls that were computed once for all examples.

    With one example, their gradients do not show it.
    """
    tape = None if recorder is None else recorder.tape
    if tape is None or watched.tensors is None:
        return set()
    origins = Origins(tape, watched.tensors, batch)
    return {call for call, mark in tape.marks.items() if origins.is_once_for_all(mark.number)}


def _copy(indices: Tensor) -> Tensor:
    return indices.detach().clone()


def _are_equal(known: tuple[Tensor, ...], node: Node) -> bool:
    now = indices_of(node) if known else []
    return len(known) == len(now) and all(map(torch.equal, known, now))
