"""Names of logs of layers, such as ``forward/fc1``, ``backward/fc1#2`` and ``grad/fc1.weight``."""

from __future__ import annotations

import dataclasses
import re

LOG_KINDS = ("forward", "backward", "grad")

_CALL = re.compile(r"(.*)#([2-9]|[1-9]\d+)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class LogName:
    """The name of one log of one layer.

    Args:
        kind: ``"forward"``, ``"backward"`` or ``"grad"``.
        layer: The name of the module for ``"forward"`` and ``"backward"``, which is ``""`` for the
            model itself; the name of the parameter for ``"grad"``.
        call: Counts the calls of a module within a batch, from 1: for ``"forward"`` from the
            first call to the last, for ``"backward"`` in the order in which gradients arrive, from
            the last call to the first. Gradients of parameters are summed over calls, so their
            call is always 1.

    >>> str(LogName("forward", "fc1")), str(LogName("backward", "fc1", call=2))
    ('forward/fc1', 'backward/fc1#2')
    >>> LogName.parse("backward/fc1#2")
    LogName(kind='backward', layer='fc1', call=2)
    >>> LogName.parse("grad/fc1.weight").layer
    'fc1.weight'
    >>> LogName.parse("loss") is None
    True
    """

    kind: str
    layer: str
    call: int = 1

    def __str__(self) -> str:
        name = f"{self.kind}/{self.layer}"
        return name if self.call == 1 else f"{name}#{self.call}"

    @classmethod
    def parse(cls, text: str) -> LogName | None:
        """Return the parts of a name, or None if it is not the name of a log of a layer."""
        kind, slash, layer = text.partition("/")
        if not slash or kind not in LOG_KINDS:
            return None
        numbered = None if kind == "grad" else _CALL.fullmatch(layer)
        if numbered is None:
            return cls(kind, layer)
        return cls(kind, numbered[1], int(numbered[2]))


def kind_of(name: str) -> str:
    """Return the kind of the log of a layer; of another name, what is before the first slash.

    >>> kind_of("grad/fc1.weight")
    'grad'
    """
    return name.partition("/")[0]
