"""Which layers a set of logs has: by the names of their columns.

Gradients go by the name of their parameter, without ``grad/``. Other logs keep their whole name.
"""

from __future__ import annotations

from collections.abc import Sequence

from sawlog.errors import ArgumentError
from sawlog.run_files import ragged
from sawlog.run_files._encode import SCALE
from sawlog.run_files._log_names import LogName


def gradient_name(layer: str) -> str:
    """Return the name of the log of the gradients of a layer."""
    return str(LogName("grad", layer))


def is_gradient(column: str) -> bool:
    """Return whether a column holds gradients."""
    name = LogName.parse(column)
    return name is not None and name.kind == "grad"


def layer_of(column: str) -> str:
    """Return the name of the layer of a column.

    >>> layer_of("grad/fc.weight"), layer_of("forward/fc")
    ('fc.weight', 'forward/fc')
    """
    name = LogName.parse(column)
    return column if name is None or name.kind != "grad" else name.layer


def gradient_layers(columns: Sequence[str]) -> list[str]:
    """Return the layers with gradients, or all layers if none has any."""
    logs = [name for name in columns if not (name.endswith(SCALE) or ragged.is_part(name))]
    return [layer_of(name) for name in logs if is_gradient(name)] or logs


def choose_layers(
    available: list[str], names: Sequence[str] | None, known: Sequence[str]
) -> list[str]:
    """Return the layers to use: ``available`` by default, or some of ``known`` by name.

    Raises:
        ArgumentError: a name is not known, or ``names`` is empty.
    """
    if names is None:
        return available
    given = [names] if isinstance(names, str) else list(names)
    wanted = list(dict.fromkeys(map(layer_of, given)))
    have = {*available, *map(layer_of, known)}
    missing = [name for name in wanted if name not in have]
    if missing or not wanted:
        problem = (
            f"There is no layer {', '.join(map(repr, missing))}" if wanted else "`names` is empty"
        )
        raise ArgumentError(f"{problem}. Layers: {', '.join(available)}.")
    return wanted
