"""The edges of a graph that a backward pass has to reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.autograd.graph import GradientEdge


def last_edges(roots: Sequence[Any], edges: Sequence[GradientEdge]) -> list[GradientEdge]:
    """Return the edges below which no other of them is.

    A backward pass to these passes all of them, and computes nothing else.
    """
    watched: dict[Any, list[GradientEdge]] = {}
    for edge in edges:
        watched.setdefault(edge.node, []).append(edge)
    found: dict[Any, bool] = {}  # whether a watched node is at or below a node
    last: list[GradientEdge] = []
    stack: list[tuple[Any, bool]] = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if node is None or (node in found and not done):
            continue
        below = [each for each, _ in node.next_functions if each is not None]
        if not done:
            found[node] = False
            stack.append((node, True))
            stack.extend((each, False) for each in below)
            continue
        inside = any(found.get(each, False) for each in below)
        if node in watched and not inside:
            last.extend(watched[node])
        found[node] = inside or node in watched
    return last
