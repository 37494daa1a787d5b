"""The plan: what to log at which equation, found by following labels through a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sawlog.jax import _compat
from sawlog.jax._core.primitive import cotangent_p, log_p
from sawlog.jax._watch.labels import CONSTANT, DATA, Label, LayerUse, label_output
from sawlog.jax._watch.probes import is_probe


@dataclasses.dataclass
class Action:
    """What to do at one equation.

    Attributes:
        use: The layer whose output it computes.
        dead: The layer whose units it may switch off, as a ReLU does, and the axis of the units.
        probe: Of the log of a probe, what it measures: a layer's output, or a parameter by name.
        inner: The plans of the programs inside, by the identity of the open jaxpr.
    """

    use: LayerUse | None = None
    dead: tuple[LayerUse, int] | None = None
    probe: LayerUse | str | None = None
    inner: dict[int, Plan] = dataclasses.field(default_factory=dict)


#: Actions by the identity of the equation.
Plan = dict[int, Action]
NOTHING = Action()


class Planner:
    """Follow labels through a program and its inner programs.

    Args:
        entries: The names of the parameters by the key of the ``log_cotangent`` that marks each.
        differentiates: Whether the program differentiates a function. Then only what it
            differentiates is the model; additions to parameters elsewhere are updates.
    """

    def __init__(self, entries: Mapping[str, str], differentiates: bool) -> None:
        self._entries = entries
        self._differentiates = differentiates
        self._probes: dict[str, LayerUse | str | None] = {}
        self._order = 0

    def program(
        self,
        jaxpr: Any,
        labels: Sequence[Label],
        mode: str = "plain",
        zeros: _Zeros | None = None,
    ) -> tuple[Plan, list[Label]]:
        """Return the plan of a program, and the labels of its outputs."""
        known = dict(zip(jaxpr.invars, labels, strict=True))
        plan: Plan = {}

        def read(atom: Any) -> Label:
            if isinstance(atom, _compat.Literal):
                return CONSTANT
            return known.get(atom, CONSTANT)

        zeros = zeros or _Zeros()
        for eqn in jaxpr.eqns:
            zeros.add(eqn)
            operands = [read(atom) for atom in eqn.invars]
            outs, action = self._equation(eqn, operands, _mode(eqn, mode), zeros)
            known.update(zip(eqn.outvars, outs, strict=True))
            if action is not None:
                plan[id(eqn)] = action
        return plan, [read(atom) for atom in jaxpr.outvars]

    def _equation(
        self, eqn: Any, labels: list[Label], mode: str, zeros: _Zeros
    ) -> tuple[list[Label], Action | None]:
        if eqn.primitive is cotangent_p:
            return [self._marked(eqn.params["site"].keys[0], labels[0], mode)], None
        if eqn.primitive is log_p:
            key = eqn.params["site"].keys[0]
            return [], Action(probe=self._probes.get(key)) if is_probe(key) else None
        programs = _compat.inner_programs(eqn) if eqn.params else []
        if programs:
            return self._inside(eqn, programs, labels, mode, zeros)
        self._order += 1
        uses = mode == ("forward" if self._differentiates else "plain")
        label = label_output(eqn, labels, mode, uses, self._order) if eqn.outvars else DATA
        action = None
        if label.fresh and label.use is not None:
            action = Action(use=label.use)
        elif uses and (switched := zeros.switched(eqn)) is not None:
            before = labels[switched]
            if before.use is not None and before.axis is not None:
                action = Action(dead=(before.use, before.axis))
        return [label, *(_other(label) for _ in eqn.outvars[1:])], action

    def _marked(self, key: str, label: Label, mode: str) -> Label:
        if key in self._entries:
            return Label((self._entries[key],), exact=True)
        if is_probe(key) and mode != "backward":  # where remat repeats the forward pass
            parameter = label.leaves[0] if label.exact else None
            self._probes[key] = label.use if label.fresh else parameter
        return dataclasses.replace(label, fresh=False)

    def _inside(
        self, eqn: Any, programs: list[Any], labels: list[Label], mode: str, zeros: _Zeros
    ) -> tuple[list[Label], Action]:
        """Follow labels through inner programs; of several branches all must agree."""
        found: list[list[Label]] = [[] for _ in eqn.outvars]
        action = Action()
        for program in programs:
            given = [DATA if i is None else labels[i] for i in program.inputs]
            plan, outs = self._until_stable(program, given, mode, zeros.inside(eqn, program))
            action.inner[id(program.jaxpr)] = plan
            for place, label in zip(program.outputs, outs, strict=True):
                if place is not None:
                    found[place].append(label)
        return [_merged(each) for each in found], action

    def _until_stable(
        self, program: Any, given: list[Label], mode: str, zeros: _Zeros
    ) -> tuple[Plan, list[Label]]:
        """Plan the body of a loop with labels that hold in every iteration."""
        stacks = bool(program.carry) and len(given) > len(program.carry)
        if stacks:  # an axis may be added or removed
            given = [dataclasses.replace(label, axis=None) for label in given]
        while True:
            plan, outs = self.program(program.jaxpr, given, mode, zeros)
            lost = [i for i, o in program.carry if not _still(given[i], outs[o])]
            if not lost:
                return plan, outs
            for i in lost:
                given[i] = DATA


_KEEP_ZERO = frozenset({"broadcast_in_dim", "convert_element_type", "pvary", "pcast"})


class _Zeros:
    """Knows which values of a program are constant zeros, to recognise a ReLU."""

    def __init__(self) -> None:
        self._zeros: set[Any] = set()
        self._compared: dict[Any, Any] = {}

    def add(self, eqn: Any) -> None:
        name = eqn.primitive.name
        if name in _KEEP_ZERO and self._is_zero(eqn.invars[0]):
            self._zeros.add(eqn.outvars[0])
        if name in ("gt", "ge", "lt", "le"):
            left, right = eqn.invars
            if self._is_zero(right) or self._is_zero(left):
                self._compared[eqn.outvars[0]] = left if self._is_zero(right) else right

    def inside(self, eqn: Any, program: Any) -> _Zeros:
        """Return what is known inside a program of an equation."""
        inner = _Zeros()
        given = {
            var: eqn.invars[i]
            for var, i in zip(program.jaxpr.invars, program.inputs, strict=True)
            if i is not None
        }
        inner._zeros = {var for var, atom in given.items() if self._is_zero(atom)}
        for var, atom in given.items():
            compared = None if isinstance(atom, _compat.Literal) else self._compared.get(atom)
            for other, same in given.items() if compared is not None else ():
                if same is compared:
                    inner._compared[var] = other
        return inner

    def switched(self, eqn: Any) -> int | None:
        """Return which operand an equation replaces by zero where it is not positive."""
        name = eqn.primitive.name
        if name == "max":
            places = [i for i, atom in enumerate(eqn.invars) if not self._is_zero(atom)]
            return places[0] if len(places) == 1 else None
        if name == "select_n" and len(eqn.invars) == 3:
            condition, *cases = eqn.invars
            places = [i for i, atom in enumerate(cases, 1) if not self._is_zero(atom)]
            if len(places) == 1 and not isinstance(condition, _compat.Literal):
                same = self._compared.get(condition) is eqn.invars[places[0]]
                return places[0] if same else None
        return None

    def _is_zero(self, atom: Any) -> bool:
        if isinstance(atom, _compat.Literal):
            return bool(np.ndim(atom.val) == 0 and atom.val == 0)
        return atom in self._zeros


def _mode(eqn: Any, around: str) -> str:
    if around in ("backward", "other"):
        return around
    made_by = _compat.transforms(eqn)
    if "transpose" in made_by:
        return "backward"
    if made_by.count("jvp") > 1:
        return "other"  # a derivative of a derivative: values and tangents look alike
    return "forward" if "jvp" in made_by else around


def _other(label: Label) -> Label:
    """Return the label of the further outputs of an equation."""
    return DATA if label.data else dataclasses.replace(label, exact=False)


def _merged(labels: list[Label]) -> Label:
    """Return the label of a value that has one of several."""
    if not labels:
        return DATA
    first = labels[0]
    if all(label == first for label in labels):
        return dataclasses.replace(first, fresh=False)
    leaves = {label.updated or (label.leaves[0] if label.exact else "") for label in labels}
    if len(leaves) == 1 and "" not in leaves:
        return Label(data=True, updated=leaves.pop())
    return DATA


def _still(before: Label, after: Label) -> bool:
    """Return whether the label of a loop's carry holds after an iteration."""
    if before in (after, DATA):
        return True
    if before.exact and after.updated == before.leaves[0]:
        return True  # an updated parameter is the parameter in the next iteration
    return before.is_parameter and after.is_parameter and before.leaves == after.leaves


def computes_with(jaxpr: Any, values: set[Any]) -> bool:
    """Return whether a program computes anything from these values, at any depth.

    Args:
        jaxpr: The program.
        values: Its variables; those that are passed on unchanged are added.
    """
    for eqn in jaxpr.eqns:
        given = {i for i, atom in enumerate(eqn.invars) if _is_in(atom, values)}
        if not given:
            continue
        programs = _compat.inner_programs(eqn) if eqn.params else []
        if eqn.primitive is cotangent_p:
            values.update(eqn.outvars)
        elif not programs:
            return True
        for program in programs:
            pairs = zip(program.jaxpr.invars, program.inputs, strict=True)
            inner = {var for var, i in pairs if i in given}
            if computes_with(program.jaxpr, inner):
                return True
            outs = zip(program.outputs, program.jaxpr.outvars, strict=True)
            places = [i for i, atom in outs if i is not None and _is_in(atom, inner)]
            values.update(eqn.outvars[i] for i in places)
    return False


def _is_in(atom: Any, values: set[Any]) -> bool:
    return not isinstance(atom, _compat.Literal) and atom in values


def differentiates(jaxpr: Any) -> bool:
    """Return whether a program contains a backward pass, at any depth."""
    return any(
        "transpose" in _compat.transforms(eqn)
        or any(differentiates(inner.jaxpr) for inner in _compat.inner_programs(eqn))
        for eqn in jaxpr.eqns
    )
