"""Figures of matplotlib: created, labelled with any text, and written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sawlog._atomic import replacing
from sawlog._optional import require
from sawlog._text import printable
from sawlog._validate import refuse


def new_figure(width: float, height: float, user: str) -> Any:
    """Return an empty figure, in inches; ``user`` is what needs matplotlib, for the error."""
    figures: Any = require("matplotlib.figure", "plot", user)
    return figures.Figure(figsize=(width, height), layout="constrained")


def label(text: object) -> str:
    r"""Return a text that matplotlib draws as it is: not as mathematics, and without controls.

    >>> label("costs $5"), label("a\x1b")
    ('costs \\$5', 'a\\x1b')
    """
    return printable(str(text)).replace("$", r"\$")


def save(figure: Any, path: str | os.PathLike[str], *, dpi: float | None = None) -> None:
    """Write a figure to a file, whose suffix is the format; without one, ``.png`` is added.

    Raises:
        ArgumentError: matplotlib does not know the format.
    """
    place = Path(path)
    place = place if place.suffix else place.with_name(f"{place.name}.png")
    known = sorted(figure.canvas.get_supported_filetypes())
    suffix = place.suffix[1:].lower()
    if suffix not in known:
        listed = ", ".join(f".{each}" for each in known)
        refuse("path", f"a file that ends with one of {listed}", str(path))
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as file:
        figure.savefig(file.aside, format=suffix, **({} if dpi is None else {"dpi": dpi}))
