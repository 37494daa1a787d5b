"""Evaluate a program with the logs of its plan added to it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core.primitives import jit_p

from sawlog.jax import _compat
from sawlog.jax._core import lowering_marks
from sawlog.jax._core.handler import Handler
from sawlog.jax._core.interpreter import Interpreter, Rewritten
from sawlog.jax._core.primitive import is_listening, log_p
from sawlog.jax._core.registry import has_rule
from sawlog.jax._core.site import Site
from sawlog.jax._core.stream import Streams
from sawlog.jax._watch.measures import SCOPE, dead_share, emit, log_norm_of_cotangent, norm
from sawlog.jax._watch.nonfinite import Nonfinite, is_harmless
from sawlog.jax._watch.plan import NOTHING, Action, Plan
from sawlog.jax._watch.probes import is_probe

_UNKNOWN = "an unknown line"
_STATE = "nonfinite"


@dataclasses.dataclass(frozen=True)
class WatchOptions:
    """What ``watch`` logs, and the prefix of the names."""

    activations: bool
    gradients: bool
    updates: bool
    dead: bool
    nonfinite: bool
    prefix: str


class WatchInterpreter(Interpreter):
    """Evaluate a program and log what its plan says.

    Logs are added as equations, also to inner programs, so that they reach the transformation
    around ``watch`` like any other.
    """

    def __init__(self, plan: Plan, options: WatchOptions) -> None:
        super().__init__(Handler())
        self._plan: Plan = {}
        self._inner: dict[int, Plan] = {}
        self._root: Plan | None = plan
        self._options = options
        self._line = _UNKNOWN
        self._checks: Nonfinite | None = None
        if options.nonfinite:
            self._checks = Nonfinite()
            self.handler.carry[_STATE] = Nonfinite.start()

    # -- programs ---------------------------------------------------------------------------------

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> tuple[list, Streams]:
        """Evaluate a program, with its own plan."""
        outside, checks = self._plan, self._checks
        plan = self._root if self._root is not None else self._inner.get(id(jaxpr), {})
        self._plan, self._root = plan, None
        known: Any = checks.enter() if checks is not None else None
        try:
            result = super().run(jaxpr, consts, args)
            self._update()
        finally:
            self._plan = outside
            if checks is not None:
                checks.leave(known)
        return result

    def _update(self) -> None:
        """Bring the state of the search for NaN up to date."""
        if self._checks is not None:
            carry = self.handler.carry
            carry[_STATE] = self._checks.update(carry[_STATE])

    def rewrite(self, inner: Any) -> Rewritten:
        """Trace an inner program again; each time, as its plan depends on the operands."""
        return self.trace(inner)

    def carried_by(self, sites: Sequence[Site]) -> tuple[str, ...]:
        """Carry the state of the search for NaN into every inner program."""
        del sites
        return tuple(self.handler.carry)

    def _rebuilt(self, eqn: Any, action: Action, values: list[Any]) -> list[Any]:
        """Evaluate an equation whose inner programs a rule rebuilds."""
        with self._inside(eqn, action), lowering_marks.kept():
            if eqn.primitive is jit_p and _compat.may_be_inlined(eqn):
                return self._inlined(_compat.inner_jaxpr(eqn), values)
            if all(is_harmless(inner.jaxpr) for inner in _compat.inner_programs(eqn)):
                with self._without_checks():
                    return list(self.rule(eqn)(self, eqn, values)[0])
            if eqn.primitive is not _compat.shard_map_p:
                self._update()
                return list(self.rule(eqn)(self, eqn, values)[0])
            with self._without_checks():
                outs = list(self.rule(eqn)(self, eqn, values)[0])
        self._check(eqn, values, outs)
        return outs

    def _inlined(self, closed: Any, values: list[Any]) -> list[Any]:
        """Evaluate an inner program in place; arrays that are known outside are known inside."""
        outside, self._plan = self._plan, self._inner.get(id(closed.jaxpr), {})
        try:
            return super().run(closed.jaxpr, closed.consts, values)[0]
        finally:
            self._plan = outside

    @contextlib.contextmanager
    def _inside(self, eqn: Any, action: Action) -> Iterator[None]:
        """Use the plans of the programs inside an equation, and its line where they have none."""
        before = self._inner, self._line
        self._inner, self._line = action.inner, self._line_of(eqn)
        try:
            yield
        finally:
            self._inner, self._line = before

    @contextlib.contextmanager
    def _without_checks(self) -> Iterator[None]:
        """Search for no NaN, inside an equation that cannot make one or is taken as a whole."""
        before = self._checks, self.handler.carry
        self._checks, self.handler.carry = None, {}
        try:
            yield
        finally:
            self._checks, self.handler.carry = before

    def _line_of(self, eqn: Any) -> str:
        """Return the source line of an equation, or that of the call around it."""
        line = _compat.source_line(eqn)
        return self._line if line == _UNKNOWN else line

    # -- equations --------------------------------------------------------------------------------

    def equation(self, eqn: Any, values: list[Any]) -> tuple[list[Any], Streams]:
        """Evaluate one equation, and log what the plan says."""
        action = self._plan.get(id(eqn), NOTHING)
        if eqn.primitive is log_p:
            self._log(eqn, values, action)
            return [], ()
        programs = _compat.subjaxprs(eqn.params) if eqn.params else []
        if SCOPE in _compat.scopes(eqn):
            return _compat.bind_equation(eqn, values), ()
        if programs and has_rule(eqn.primitive) and not self._drops_logs(eqn, programs):
            return self._rebuilt(eqn, action, values), ()
        outs = self._without_probes(eqn, values) if programs else _compat.bind_equation(eqn, values)
        self._check(eqn, values, outs)
        if action.use is not None and action.use.final:
            outs[0] = self._layer(action.use.name, outs[0], self._line_of(eqn))
        if action.dead is not None and self._options.dead:
            use, axis = action.dead
            share = dead_share(outs[0], axis)
            emit({f"{self._options.prefix}dead/{use.name}": share}, self._line_of(eqn))
        return outs, ()

    def _drops_logs(self, eqn: Any, programs: list[Any]) -> bool:
        """Return whether logs inside an equation are dropped on purpose, so it stays marked."""
        return lowering_marks.dropped(eqn) and any(map(self.sites_of, programs))

    def _layer(self, name: str, out: Any, line: str) -> Any:
        options = self._options
        if options.activations:
            emit({f"{options.prefix}activation/{name}": norm(out)}, line)
        if options.gradients:
            out = log_norm_of_cotangent(f"{options.prefix}cotangent/{name}", out, line)
        return out

    def _check(self, eqn: Any, values: list[Any], outs: list[Any]) -> None:
        if self._checks is not None:
            self._checks.equation(eqn, self._line_of(eqn), values, outs)

    def _log(self, eqn: Any, values: list[Any], action: Action) -> None:
        """Bind a log of the user unchanged, and that of a probe under the name of its place."""
        params = dict(eqn.params)
        site, target = params["site"], action.probe
        if not is_listening():
            return
        if is_probe(site.keys[0]):
            if not self._options.gradients or target is None:
                return
            if isinstance(target, str):
                name = f"gradient/{target}"
            elif target.final:
                name = f"cotangent/{target.name}"
            else:
                return
            name = f"{self._options.prefix}{name}"
            params["site"] = dataclasses.replace(site, keys=(name,), where=self._line)
            with lowering_marks.kept():
                log_p.bind(*values, **params)
        else:
            log_p.bind(*values, **params)

    def _without_probes(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Bind an equation whose programs no rule covers; probes inside it have no names."""
        keys = [key for site in self.sites_in(eqn) for key in site.keys]
        if keys and all(map(is_probe, keys)):
            return list(self.without_logs(eqn)(*values))
        return _compat.bind_equation(eqn, values)

    # -- the end ----------------------------------------------------------------------------------

    def check_arguments(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Look for NaN and infinities in the arguments of the program."""
        if self._checks is None:
            return
        for name, value in zip(names, values, strict=True):
            self._checks.argument(name, value)
        self._update()

    def finish(self, where: str) -> None:
        """Log the first equation that made a NaN or an infinity."""
        if self._checks is not None:
            self._checks.emit(self.handler.carry[_STATE], self._options.prefix, where)
