"""Find the layers of a model to watch."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sawlog._validate import one_of
from sawlog.errors import ArgumentError, UncoveredError
from sawlog.run_files._blocks import Block
from sawlog.torch._layers import Part, Rule, general, rule_for
from sawlog.torch._model._constants import ModelTensors
from sawlog.torch._model._names import named_modules, named_parameters
from sawlog.torch._model._sharded import LiveParameters, LiveTensors, is_split
from sawlog.torch._model._watched import Share, Unit, Watched

Names = str | Sequence[str] | Callable[[str], bool] | None


UNCOVERED = ("func", "skip", "error")

FROZEN = "frozen"
"""Why a parameter is not watched: it does not require a gradient."""


def find_watched(
    model: nn.Module,
    names: Names = None,
    types: type[nn.Module] | Sequence[type[nn.Module]] | None = None,
    uncovered: str = "func",
) -> Watched:
    """Find the layers of a model to watch.

    Args:
        model: the model; it is not changed.
        names: patterns of names of modules or parameters, such as ``"encoder.*"``, or a function.
        types: types of modules.
        uncovered: what to do about parameters that no rule covers: ``"func"`` differentiates the
            operations that use them, ``"skip"`` leaves them out, ``"error"`` raises.

    Raises:
        ArgumentError: no parameter matches, or an option is not valid.
        UncoveredError: ``uncovered="error"``, and no rule covers some parameters; the message names
            all of them. Or a parameter is complex.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"`model` must be a torch.nn.Module; got {type(model).__name__}.")
    one_of("uncovered", uncovered, UNCOVERED)
    lazy = [name for name, each in model.named_parameters() if is_lazy(each)]
    if lazy:
        raise ArgumentError(
            f"The parameter {lazy[0]!r} has no shape yet. Hint: run a batch through the model "
            "before run.watch(model)."
        )
    search = _Search(model, _chooser(names), _types(types), uncovered)
    search.walk()
    return search.result()


def _chooser(names: Names) -> Callable[[str], bool]:
    if names is None:
        return lambda name: True
    if callable(names):
        return names
    patterns = [names] if isinstance(names, str) else list(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ArgumentError(
                '`names` must be patterns, such as ["encoder.*", "head"], or a function; got '
                f"{pattern!r}."
            )
    return lambda name: any(
        fnmatch.fnmatchcase(name, each) or name.startswith(each + ".") for each in patterns
    )


def _types(types: Any) -> tuple[type[nn.Module], ...] | None:
    if types is None:
        return None
    several = (types,) if isinstance(types, type) else tuple(types)
    for each in several:
        if not (isinstance(each, type) and issubclass(each, nn.Module)):
            raise ArgumentError(
                f"`types` must be types of modules, such as [nn.Linear]; got {each!r}."
            )
    return several


class _Search:
    """Collects the modules of a model, their rules, and uncovered parameters."""

    def __init__(
        self,
        model: nn.Module,
        chosen: Callable[[str], bool],
        types: tuple[type[nn.Module], ...] | None,
        uncovered: str,
    ) -> None:
        self._model, self._chosen, self._types, self._uncovered = model, chosen, types, uncovered
        self._names = named_parameters(model)
        self._found: list[tuple[str, nn.Module, Rule, list[Part]]] = []
        self._covered: set[int] = set()
        self._missing: dict[int, tuple[str, str]] = {}  # the module of each uncovered parameter
        self._skipped: list[tuple[str, str]] = []

    def walk(self) -> None:
        inside: tuple[str, ...] = ()
        for name, module in named_modules(self._model):
            if any(name.startswith(each) for each in inside):
                continue
            rule = rule_for(module)
            whole = rule is not None and rule.whole
            if whole:
                inside = (*inside, f"{name}." if name else "")
            own: dict[str, Tensor] = dict(module.named_parameters(recurse=whole))
            wanted = {each: p for each, p in own.items() if self._wants(name, module, each, p)}
            if wanted:
                self._take(name, module, rule, wanted)

    def _wants(self, name: str, module: nn.Module, parameter: str, tensor: Tensor) -> bool:
        full = f"{name}.{parameter}" if name else parameter
        if not (self._chosen(name) or self._chosen(full)):
            return False
        if self._types is not None and not isinstance(module, self._types):
            return False
        if not tensor.requires_grad:
            self._skipped.append((full, FROZEN))
            return False
        return is_lazy(tensor) or self._has_real_numbers(full, tensor)

    def _has_real_numbers(self, name: str, tensor: Tensor) -> bool:
        if not tensor.numel():
            self._skipped.append((name, "empty"))
            return False
        if not tensor.is_complex():
            return True
        if self._uncovered != "skip":
            raise UncoveredError(
                f"The parameter {name!r} is complex; gradients of complex parameters cannot be "
                "logged. Hint: store it as nn.Parameter(torch.view_as_real(w)) and apply "
                'torch.view_as_complex; or leave it out by names= or uncovered="skip".'
            )
        self._skipped.append((name, "complex"))
        return False

    def _take(
        self, name: str, module: nn.Module, rule: Rule | None, wanted: dict[str, Tensor]
    ) -> None:
        parts = [] if rule is None else list(rule.parts(module))
        parts = [part for part in parts if part.name in wanted or part.bias in wanted]
        if rule is not None and parts:
            self._found.append((name, module, rule, parts))
        covered = {each for part in parts for each in (part.name, part.bias)}
        self._covered.update(id(p) for each, p in wanted.items() if each in covered)
        rest = {each: p for each, p in wanted.items() if each not in covered}
        if rest and self._uncovered == "func":
            fallback = general(tuple(rest))
            self._found.append((name, module, fallback, list(fallback.parts(module))))
            self._covered.update(map(id, rest.values()))
            return
        for each, tensor in rest.items():
            full = f"{name}.{each}" if name else each
            self._missing.setdefault(id(tensor), (full, type(module).__name__))

    def result(self) -> Watched:
        lost = [where for key, where in self._missing.items() if key not in self._covered]
        if lost and self._uncovered == "error":
            listed = "\n".join(f"  {name} (of {kind})" for name, kind in lost)
            raise UncoveredError(
                f"No layer rule covers {len(lost)} parameters:\n{listed}\n"
                'Hint: watch(model, uncovered="func") differentiates the operations that use them, '
                'uncovered="skip" leaves them out, names= chooses, and '
                "@sawlog.torch.register_layer(type) adds a rule."
            )
        skipped = self._skipped + [(name, f"no rule for {kind}") for name, kind in lost]
        if not self._found:
            raise ArgumentError(
                "No parameter matches names= and types= and requires a gradient. "
                f"The model has: {self._listing()}."
            )
        return self._blocks(tuple(skipped))

    def _listing(self) -> str:
        named = [
            f"{n} ({'trained' if p.requires_grad else 'frozen'})"
            for n, p in self._model.named_parameters()
        ]
        return ", ".join(named[:20]) + (", ..." if len(named) > 20 else "") or "no parameters"

    def _blocks(self, skipped: tuple[tuple[str, str], ...]) -> Watched:
        uses = Counter(
            id(module.get_parameter(part.name))
            for _, module, _, parts in self._found
            for part in parts
        )
        blocks: dict[int, Block] = {}
        units = []
        for name, module, rule, parts in self._found:
            shares: list[Share] = []
            for part in parts:
                tied = uses[id(module.get_parameter(part.name))] > 1
                shares.extend(self._shares(module, part, tied, blocks))
            units.append(Unit(name, module, rule, tuple(shares)))
        named = {self._names[id(p)]: p for p in self._model.parameters()}
        names = [name for block in blocks.values() for name in block.parameters]
        watched: Mapping[str, Tensor] = {name: named[name] for name in names}
        others: Sequence[Tensor] = (*self._model.buffers(), *self._model.parameters())
        if any(map(is_split, self._model.parameters())):  # whole only while a batch is logged
            watched, others = LiveParameters(self._model, names), LiveTensors(self._model)
        kinds = nn.modules.batchnorm._BatchNorm
        norms = [(n, m) for n, m in self._model.named_modules() if isinstance(m, kinds)]
        return Watched(
            tuple(units),
            tuple(blocks.values()),
            skipped,
            watched,
            tuple(norms),
            buffers=others,
            tensors=ModelTensors(self._model),
        )

    def _shares(
        self, module: nn.Module, part: Part, tied: bool, blocks: dict[int, Block]
    ) -> list[Share]:
        """Return a weight and its bias as one block, unless several modules share the weight."""
        weight = module.get_parameter(part.name)
        bias = None if part.bias is None else module.get_parameter(part.bias)
        weight_too = weight.requires_grad and id(weight) in self._covered
        bias_too = bias is not None and bias.requires_grad and id(bias) in self._covered
        shares = []
        if weight_too and bias_too and not tied:
            assert bias is not None
            shares.append(self._share(part, blocks, (weight, bias), weight=True, bias=True))
        else:
            if weight_too:
                shares.append(self._share(part, blocks, (weight,), weight=True, bias=False))
            if bias_too:
                assert bias is not None
                shares.append(self._share(part, blocks, (bias,), weight=False, bias=True))
        return shares

    def _share(
        self, part: Part, blocks: dict[int, Block], of: Sequence[Tensor], weight: bool, bias: bool
    ) -> Share:
        *groups, rows, cols = part.shape
        if weight and bias:
            rows, cols = (rows + 1, cols) if part.inputs == "left" else (rows, cols + 1)
        elif bias:
            rows, cols = (cols, 1) if part.inputs == "left" else (rows, 1)
        block = Block(
            name=self._names[id(of[0])],
            parameters=tuple(self._names[id(p)] for p in of),
            shape=(*groups, rows, cols),
            inputs=part.inputs if weight else "right",
        )
        block = blocks.setdefault(id(of[0]), block)
        if block.shape != (*groups, rows, cols):
            raise ArgumentError(
                f"The parameter {block.name!r} is shared by layers that use it in different "
                f"shapes, {block.shape} and {(*groups, rows, cols)}. Hint: leave one of them out "
                "by names=."
            )
        return Share(part, block, weight, bias)
