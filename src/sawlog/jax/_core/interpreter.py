"""The interpreter of traced programs that all handlers share.

It evaluates a jaxpr equation by equation in the active trace::

    run:     jaxpr, consts, args -> outputs, streams

An equation without logs is bound unchanged. A log is passed to the handler. An equation with logs
inside is rebuilt by its rule, see :mod:`~sawlog.jax._core.registry`; rules rewrite inner programs::

    inner:    [*inputs] -> [*outputs]
    rewrite:  [*hoisted, *carry, *inputs] -> [*outputs, *leaves of streams, *carry]

``hoisted`` are tracers that the rewritten program closes over, ``carry`` is the part of the
handler's state that its logs update. Jaxprs that JAX owns or caches are never edited: inner
programs are traced again.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sawlog.jax import _compat
from sawlog.jax._core import lowering_marks
from sawlog.jax._core.gather import gather
from sawlog.jax._core.handler import DropLogs, Handler
from sawlog.jax._core.opaque_primitives import check_hidden_functions, hides_functions
from sawlog.jax._core.primitive import PASSING_PRIMITIVES, is_listening
from sawlog.jax._core.registry import rule_for
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams

Preparation = Callable[[Any], Any]

_preparations: dict[Any, Preparation] = {}


def register_preparation(primitive: Any) -> Callable[[Preparation], Preparation]:
    """Register ``prepare(eqn) -> eqn``, applied to equations with logs inside before their rule."""

    def register(prepare: Preparation) -> Preparation:
        _preparations[primitive] = prepare
        return prepare

    return register


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """An inner program that was traced again, with its logs as further outputs.

    Attributes:
        closed: Maps ``[*hoisted, *carry, *inputs]`` to ``[*outputs, *leaves of streams, *carry]``.
        hoisted: The tracers that the program closes over.
        outputs: The number of outputs of the original program.
        tree: The pytree structure of the streams.
        names: The names in the handler's carry that the program updates.
        carry_tree: The pytree structure of the carry.
    """

    closed: _compat.ClosedJaxpr
    hoisted: tuple[Any, ...]
    outputs: int
    tree: Any
    names: tuple[str, ...]
    carry_tree: Any

    @property
    def carried(self) -> int:
        """The number of arrays in the carry."""
        return int(self.carry_tree.num_leaves)

    @property
    def extra(self) -> int:
        """The number of added outputs."""
        return int(self.tree.num_leaves) + self.carried

    @property
    def stream_types(self) -> Streams:
        """The streams, with types instead of values."""
        types = self.closed.out_avals[self.outputs :]
        return jax.tree.unflatten(self.tree, types[: self.tree.num_leaves])


class Interpreter:
    """Evaluate programs for one handler."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._rewritten: dict[int, tuple[Any, Rewritten]] = {}
        self._sites: dict[int, tuple[Any, tuple[Site, ...]]] = {}
        self._prepared: dict[int, tuple[Any, Any]] = {}
        self._hiding: dict[int, tuple[Any, bool]] = {}
        self._stripper: Interpreter | None = None

    # -- evaluating ---------------------------------------------------------------------------

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> tuple[list, Streams]:
        """Evaluate ``jaxpr`` in the active trace; return outputs and one stream for each name."""
        environment = dict(zip(jaxpr.constvars, consts, strict=True))
        environment.update(zip(jaxpr.invars, args, strict=True))
        streams: list[Any] = []

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, _compat.Literal) else environment[atom]

        for eqn in jaxpr.eqns:
            values = [read(atom) for atom in eqn.invars]
            with _compat.equation_scope(eqn):
                self.before(eqn, streams)
                outs, found = self.equation(eqn, values)
                streams.extend(found)
                self.after(streams)
            environment.update(zip(eqn.outvars, outs, strict=True))
        return [read(atom) for atom in jaxpr.outvars], gather(streams)

    def before(self, eqn: Any, pending: list[Any]) -> None:
        """Receive the streams so far, before an equation is evaluated; a hook."""

    def after(self, pending: list[Any]) -> None:
        """Receive the streams so far, after an equation was evaluated; a hook."""

    def rule(self, eqn: Any) -> Any:
        """Return the rule for an equation with logs inside."""
        return rule_for(eqn, [site.where for site in self.sites_in(eqn)])

    def equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], Streams]:
        """Evaluate one equation; return its outputs and streams."""
        if eqn.primitive in self.handler.primitives:
            params = dict(eqn.params)
            values = [_as_array(*pair) for pair in zip(eqn.invars, values, strict=True)]
            if eqn.primitive in PASSING_PRIMITIVES:
                return self.handler.passing(eqn.primitive, params["site"], values), ()
            if self.handler.keep_logs and is_listening():
                eqn.primitive.bind(*values, **params)
            return [], self.handler.site(eqn.primitive, params.pop("site"), values, params)
        sites = self.sites_in(eqn)
        if sites and eqn.primitive in _preparations:
            eqn = self._prepare(eqn)
            sites = self.sites_in(eqn)
        if not sites:
            with self._listening_to(eqn):
                return _compat.bind_equation(eqn, values), ()
        if not any(map(self._uses, sites)):
            return self.without_logs(eqn)(*values), ()
        return self.rule(eqn)(self, eqn, values)

    def _listening_to(self, eqn: Any) -> Any:
        """Return a context to bind an equation whose logs, if any, only show when it is lowered."""
        chosen = self.handler.listens_for
        if chosen is None or not eqn.params or lowering_marks.dropped(eqn):
            return contextlib.nullcontext()
        if not hides_functions(eqn, self._hiding):
            return contextlib.nullcontext()
        with lowering_marks.listening_to(eqn, chosen):
            check_hidden_functions(eqn)
        return lowering_marks.listening_to(eqn, chosen)

    def _prepare(self, eqn: Any) -> Any:
        known = self._prepared.get(id(eqn))
        if known is None:
            known = self._prepared[id(eqn)] = (eqn, _preparations[eqn.primitive](eqn))
        return known[1]

    def without_logs(self, eqn: Any) -> Callable[..., list[Any]]:
        """Return a function that binds an equation without the logs in its jaxprs."""
        if self._stripper is None:
            self._stripper = Interpreter(DropLogs(self.handler.primitives))
            self._stripper._stripper = self._stripper
        stripped = eqn.replace(params=self._stripper.rewrite_params(eqn.params))

        hides = hides_functions(eqn, self._hiding)

        def bind(*values: Any) -> list[Any]:
            with lowering_marks.dropping() if hides else contextlib.nullcontext():
                return _compat.bind_equation(stripped, values)

        return bind

    def rewrite_params(self, value: Any) -> Any:
        """Return parameters of an equation with every jaxpr in them rewritten."""
        if isinstance(value, _compat.ClosedJaxpr):
            return self.rewrite(value).closed
        if isinstance(value, _compat.Jaxpr):
            return self.rewrite(value).closed.jaxpr
        if isinstance(value, dict):
            return {name: self.rewrite_params(item) for name, item in value.items()}
        if isinstance(value, (tuple, list)):
            items = [self.rewrite_params(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        if _compat.is_frozen_dataclass(value) and _compat.subjaxprs({"": value}):
            return dataclasses.replace(value, **self.rewrite_params(vars(value)))
        return value

    # -- finding logs -------------------------------------------------------------------------

    def sites_in(self, eqn: Any) -> tuple[Site, ...]:
        """Return the logs inside an equation, at any depth."""
        found: list[Site] = []
        if lowering_marks.dropped(eqn):
            return ()
        for inner in _compat.subjaxprs(eqn.params):
            found.extend(self.sites_of(inner))
        return tuple(dict.fromkeys(found))

    def sites_of(self, program: Any) -> tuple[Site, ...]:
        """Return the logs inside a program, open or closed."""
        return self._sites_of(getattr(program, "jaxpr", program))

    def wanted_in(self, eqn: Any) -> list[Site]:
        """Return the logs that the handler uses: the equation itself, or those inside it."""
        own = [eqn.params["site"]] if eqn.primitive in self.handler.primitives else []
        return [site for site in (*own, *self.sites_in(eqn)) if self._uses(site)]

    def _uses(self, site: Site) -> bool:
        return self.handler.keep_logs or self.handler.wants(site)

    @staticmethod
    def inner(eqn: Any) -> list[Any]:
        """Return the jaxprs among the parameters of an equation."""
        return _compat.subjaxprs(eqn.params)

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
        """Trace an inner program again, with its logs as further outputs; cached by program."""
        known = self._rewritten.get(id(inner))
        if known is not None:
            return known[1]
        result = self.trace(inner)
        if not result.hoisted:  # hoisted tracers are valid in the active trace only
            self._rewritten[id(inner)] = (inner, result)
        return result

    def trace(self, inner: Any, finish: Callable[[Streams], Streams] = gather) -> Rewritten:
        """Trace an inner program again; ``finish`` may change the streams that it returns."""
        jaxpr, consts = (inner.jaxpr, inner.consts) if hasattr(inner, "jaxpr") else (inner, ())
        names = self.carried_by(self._sites_of(jaxpr))
        carry, carry_tree = jax.tree.flatten([self.handler.carry[name] for name in names])
        tree: list[Any] = []

        def flat(*args: Any) -> list[Any]:
            with self.carrying(names, jax.tree.unflatten(carry_tree, args[: len(carry)])) as after:
                outs, streams = self.run(jaxpr, consts, args[len(carry) :])
            leaves, structure = jax.tree.flatten(finish(streams))
            tree.append(structure)
            return [*outs, *leaves, *jax.tree.leaves(after())]

        avals = [*map(_compat.typeof, carry), *(var.aval for var in jaxpr.invars)]
        name = jaxpr.debug_info.func_src_info or "a part of the program"
        closed, hoisted = _compat.hoist_consts(_compat.trace_flat(flat, avals, name))
        return Rewritten(closed, tuple(hoisted), len(jaxpr.outvars), tree[0], names, carry_tree)

    def leading(self, new: Rewritten) -> list[Any]:
        """Return the operands that a rewritten program takes in front of its own."""
        return [*new.hoisted, *self.state(new.names)]

    def split(self, new: Rewritten, outs: Sequence[Any]) -> tuple[list[Any], Streams]:
        """Split the outputs of a rewritten program into outputs and streams; update the carry."""
        streams = new.outputs + new.tree.num_leaves
        self.update(new.names, new.carry_tree, outs[streams:])
        found = jax.tree.unflatten(new.tree, outs[new.outputs : streams])
        return list(outs[: new.outputs]), found

    # -- the carry ----------------------------------------------------------------------------

    def carried_by(self, sites: Sequence[Site]) -> tuple[str, ...]:
        """Return the names in the handler's carry that any of these logs updates."""
        carried = self.handler.carried
        return tuple(dict.fromkeys(name for site in sites for name in carried(site)))

    def state(self, names: Sequence[str]) -> list[Any]:
        """Return the current carry under these names, flat."""
        return jax.tree.leaves([self.handler.carry[name] for name in names])

    def update(self, names: Sequence[str], tree: Any, leaves: Sequence[Any]) -> None:
        """Replace the carry under these names."""
        self.handler.carry.update(zip(names, jax.tree.unflatten(tree, leaves), strict=True))

    @contextlib.contextmanager
    def carrying(self, names: Sequence[str], states: Sequence[Any]) -> Iterator[Callable[[], list]]:
        """Replace the carry inside a program that takes it as an argument.

        Yields a function that returns the states under ``names`` after the evaluation.
        """
        handler, outside = self.handler, self.handler.carry
        handler.carry = {**outside, **dict(zip(names, states, strict=True))}
        inside = handler.carry
        try:
            yield lambda: [inside[name] for name in names]
        finally:
            handler.carry = outside


def _as_array(atom: Any, value: Any) -> Any:
    """Convert a literal, which may be a Python number: handlers take arrays."""
    return value if hasattr(value, "ndim") else np.asarray(value, atom.aval.dtype)
