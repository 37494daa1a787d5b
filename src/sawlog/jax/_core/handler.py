"""Handlers: what a transformation does with the logs of a program.

The interpreter walks a program and calls the handler for each log::

    handler.site(primitive, site, operands, params) -> streams

``site`` is the static part of the log and ``operands`` its flat arrays (see
:mod:`~sawlog.jax._core.site`). The returned streams leave the program as outputs; a handler that
collects nothing returns ``()``. A handler with state keeps it in ``carry``, a dict from names to
pytrees of arrays. The interpreter threads the carry through loops, branches and calls as a value:
``carried(site)`` names the part that a log updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sawlog.jax._core.primitive import log_p
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams


class Handler:
    """A handler that drops every log. Subclasses override what they need."""

    #: The primitives that this handler processes; others are bound unchanged.
    primitives: tuple[Any, ...] = (log_p,)
    #: Whether logs leave the program as outputs, so that a loop must have room for them.
    collects = False
    #: Whether only the types of the collected streams matter.
    surveys = False

    #: Whether outer transformations see the logs too.
    keep_logs = False

    #: The names that would be lost if they are logged where the interpreter cannot see it, or None.
    listens_for: Selection | None = None

    def __init__(self) -> None:
        self.carry: dict[str, Any] = {}

    def wants(self, site: Site) -> bool:
        """Return whether the handler uses this log.

        A log that it does not use is dropped, unless ``keep_logs``.
        """
        del site
        return False

    def carried(self, site: Site) -> Sequence[str]:
        """Return the names in ``carry`` that this log updates."""
        del site
        return ()

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Process one log, and return the streams that leave the program as outputs."""
        del primitive, site, operands, params
        return ()

    def passing(self, primitive: Any, site: Site, operands: Sequence[Any]) -> list[Any]:
        """Return the outputs of a ``log_cotangent``, for a handler that processes those."""
        del primitive
        return list(operands[: site.trees[0].num_leaves])


class DropLogs(Handler):
    """A handler that drops the logs of the given primitives."""

    def __init__(self, primitives: tuple[Any, ...]) -> None:
        super().__init__()
        self.primitives = primitives
