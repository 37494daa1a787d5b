"""Bar charts of scores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from sawlog import _figures

if TYPE_CHECKING:
    from sawlog.influence._scores import Scores


def bars(
    scores: Scores, query: Any, *, path: str | os.PathLike[str] | None = None, most: int = 10
) -> Any:
    """Draw the best examples of a query, and the worst if all scores are known."""
    pairs = sorted(scores[query], key=lambda pair: -pair[1])
    if scores.whole and len(pairs) > 2 * most:
        pairs = pairs[:most] + pairs[-most:]
    names = [_figures.label(name) for name, _ in pairs]
    values = np.array([value for _, value in pairs])
    figure = _figures.new_figure(6, 0.3 * len(pairs) + 1.2, "Scores.plot()")
    axes = figure.add_subplot()
    colors = np.where(values >= 0, "tab:blue", "tab:red")
    axes.barh(np.arange(len(pairs)), values, color=colors.tolist())
    axes.set_yticks(np.arange(len(pairs)), names)
    axes.invert_yaxis()
    axes.axvline(0, color="black", linewidth=0.8)
    kind = scores.about.get("curvature", "")
    axes.set_xlabel(_figures.label(f"influence on {query} ({kind})"))
    if path is not None:
        _figures.save(figure, path)
    return figure
