"""What a transformation does with the logs it meets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sawlog.jax._core.primitive import log_p
from sawlog.jax._core.select import Selection
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams


class Handler:
    """The handler that drops what it meets; the others override it.

    ``carry`` holds state by name that every log may update. It is threaded through loops, branches
    and calls as a value: the walk puts it there and takes it back.
    """

    #: The primitives that this handler takes; others are bound as they stand.
    primitives: tuple[Any, ...] = (log_p,)
    #: Whether logs leave the program as outputs, so that a loop must have room for them.
    collects = False
    #: Whether only the types of what would be collected matter.
    surveys = False

    #: Whether transformations further out see the logs as well.
    keep_logs = False

    #: The names that are lost if they are logged where no walk can see it; None: nothing is.
    listens_for: Selection | None = None

    def __init__(self) -> None:
        self.carry: dict[str, Any] = {}

    def wants(self, site: Site) -> bool:
        """Whether this log makes any difference.

        Those that do not are dropped on the way, unless they are kept for others.
        """
        del site
        return False

    def carried(self, site: Site) -> Sequence[str]:
        """The names in ``carry`` that this log updates."""
        del site
        return ()

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Take one log; what is returned travels outwards with the program's outputs."""
        del primitive, site, operands, params
        return ()

    def passing(self, primitive: Any, site: Site, operands: Sequence[Any]) -> list[Any]:
        """The outputs of a ``log_cotangent``, where this handler takes those at all."""
        del primitive
        return list(operands[: site.trees[0].num_leaves])


class Drop(Handler):
    """Drops the logs of the given primitives."""

    def __init__(self, primitives: tuple[Any, ...]) -> None:
        super().__init__()
        self.primitives = primitives
