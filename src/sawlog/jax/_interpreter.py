"""The one walk over a traced program that all handlers share.

The walk evaluates a jaxpr equation by equation in the present trace. Equations without logs are
bound as they stand. A log is given to the handler. An equation with logs inside is rebuilt by its
rule. Nothing that JAX owns or caches is edited: inner programs are traced anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._primitive import subjaxprs
from sawlog.jax._registry import rule_for
from sawlog.jax._site import Site
from sawlog.jax._stream import Streams, gather


class Handler(Protocol):
    """What a transformation does with the logs it meets."""

    collects: bool
    primitives: tuple[Any, ...]

    def wants(self, site: Site) -> bool:
        """Whether this log makes any difference; those that do not are dropped on the way."""

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Take one log; what is returned travels outwards with the program's outputs."""


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """An inner program, traced anew.

    ``closed`` maps ``[*hoisted, *inputs]`` to ``[*outputs, *leaves of streams]``.
    """

    closed: _compat.ClosedJaxpr
    hoisted: tuple[Any, ...]
    outputs: int
    tree: Any

    @property
    def extra(self) -> int:
        """How many outputs were added."""
        return int(self.tree.num_leaves)

    @property
    def stream_types(self) -> Streams:
        """The streams, with types instead of values."""
        return jax.tree.unflatten(self.tree, self.closed.out_avals[self.outputs :])

    def split(self, outs: Sequence[Any]) -> tuple[list[Any], Streams]:
        """Outputs as they were, and the streams."""
        streams = jax.tree.unflatten(self.tree, outs[self.outputs :])
        return list(outs[: self.outputs]), streams


class Interpreter:
    """Walks one program for one handler."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._rewritten: dict[int, tuple[Any, Rewritten]] = {}
        self._sites: dict[int, tuple[Any, tuple[Site, ...]]] = {}
        self._stripper: Interpreter | None = None

    # -- evaluating ---------------------------------------------------------------------------

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> tuple[list, Streams]:
        """Evaluate ``jaxpr`` here; outputs, and one stream for each name."""
        environment = dict(zip(jaxpr.constvars, consts, strict=True))
        environment.update(zip(jaxpr.invars, args, strict=True))
        streams: list[Any] = []

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, _compat.Literal) else environment[atom]

        for eqn in jaxpr.eqns:
            values = [read(atom) for atom in eqn.invars]
            with _compat.equation_scope(eqn):
                outs, found = self._equation(eqn, values)
            streams.extend(found)
            environment.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars], gather(streams)

    def _equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], Streams]:
        if eqn.primitive in self.handler.primitives:
            params = dict(eqn.params)
            values = [_as_array(*pair) for pair in zip(eqn.invars, values, strict=True)]
            return [], self.handler.site(eqn.primitive, params.pop("site"), values, params)
        sites = self.sites_in(eqn)
        if not sites:
            return _compat.bind_equation(eqn, values), ()
        if not any(map(self.handler.wants, sites)):
            return self.without_logs(eqn)(*values), ()
        return rule_for(eqn, [site.where for site in sites])(self, eqn, values)

    def without_logs(self, eqn: Any) -> Callable[..., list[Any]]:
        """A function that binds an equation with the logs taken out of every jaxpr it holds."""
        if self._stripper is None:
            self._stripper = Interpreter(Drop(self.handler.primitives))
            self._stripper._stripper = self._stripper
        rewrite = self._stripper.rewrite

        def clean(value: Any) -> Any:
            if isinstance(value, _compat.ClosedJaxpr):
                return rewrite(value).closed
            if isinstance(value, _compat.Jaxpr):
                return rewrite(value).closed.jaxpr
            if isinstance(value, (tuple, list)):
                items = [clean(item) for item in value]
                return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
            return value

        stripped = eqn.replace(params={name: clean(value) for name, value in eqn.params.items()})
        return lambda *values: _compat.bind_equation(stripped, values)

    # -- looking ------------------------------------------------------------------------------

    def sites_in(self, eqn: Any) -> tuple[Site, ...]:
        """The logs inside an equation, however deep."""
        found: list[Site] = []
        for inner in subjaxprs(eqn.params):
            found.extend(self._sites_of(getattr(inner, "jaxpr", inner)))
        return tuple(dict.fromkeys(found))

    def _sites_of(self, jaxpr: Any) -> tuple[Site, ...]:
        known = self._sites.get(id(jaxpr))
        if known is not None:
            return known[1]
        found: list[Site] = []
        for eqn in jaxpr.eqns:
            if eqn.primitive in self.handler.primitives:
                found.append(eqn.params["site"])
            elif eqn.params:
                found.extend(self.sites_in(eqn))
        sites = tuple(dict.fromkeys(found))
        self._sites[id(jaxpr)] = (jaxpr, sites)
        return sites

    # -- rebuilding ---------------------------------------------------------------------------

    def rewrite(self, inner: Any) -> Rewritten:
        """Trace an inner program anew, its logs as further outputs; each one only once."""
        known = self._rewritten.get(id(inner))
        if known is not None:
            return known[1]
        result = self.trace(inner)
        if not result.hoisted:  # what is hoisted belongs to the trace that is open now
            self._rewritten[id(inner)] = (inner, result)
        return result

    def trace(self, inner: Any, finish: Callable[[Streams], Streams] = gather) -> Rewritten:
        """Trace an inner program anew; ``finish(streams)`` may change what it emits."""
        jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, ())
        avals = [var.aval for var in jaxpr.invars]
        tree: list[Any] = []

        def flat(*args: Any) -> list[Any]:
            outs, streams = self.run(jaxpr, consts, args)
            leaves, structure = jax.tree.flatten(finish(streams))
            tree.append(structure)
            return [*outs, *leaves]

        name = jaxpr.debug_info.func_src_info or "a part of the program"
        closed, hoisted = _compat.hoist_consts(_compat.trace_flat(flat, avals, name))
        return Rewritten(closed, tuple(hoisted), len(jaxpr.outvars), tree[0])


def _as_array(atom: Any, value: Any) -> Any:
    """A literal in a jaxpr may be a Python number; a handler gets arrays."""
    return value if hasattr(value, "ndim") else np.asarray(value, atom.aval.dtype)


class Drop:
    """The handler that drops what it meets."""

    collects = False

    def __init__(self, primitives: tuple[Any, ...]) -> None:
        self.primitives = primitives

    def wants(self, site: Site) -> bool:
        """None."""
        del site
        return False

    def site(self, primitive: Any, site: Site, operands: Sequence[Any], params: dict) -> Streams:
        """Drop one log."""
        del primitive, site, operands, params
        return ()
