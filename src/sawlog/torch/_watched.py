"""Which parameters of a model are watched, through which modules, as which blocks."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sawlog._validate import one_of
from sawlog.errors import ArgumentError, UncoveredError
from sawlog.factored import Dense, Factor, OneHot, Pair
from sawlog.run_files._blocks import Block
from sawlog.torch._layers import Part, Rule, general, rule_for
from sawlog.torch._names import named_modules, named_parameters
from sawlog.torch._sharded import LiveParameters, LiveTensors, is_split

Names = str | Sequence[str] | Callable[[str], bool] | None

UNCOVERED = ("error", "skip", "func")


@dataclasses.dataclass(frozen=True)
class Share:
    """What one part of a module adds to a block: the weight, the bias, or both as one matrix."""

    part: Part
    block: Block
    weight: bool
    bias: bool

    def of(self, pair: Pair) -> Pair:
        """The factors of the block, given those of the weight."""
        if self.weight and not self.bias:
            return pair
        inputs = pair.left if self.part.inputs == "left" else pair.right
        outputs = pair.right if self.part.inputs == "left" else pair.left
        assert isinstance(outputs, Dense)
        if not self.weight:
            return Pair(outputs, Dense(outputs.array[..., :1] * 0 + 1))
        widened = _with_one(inputs)
        return Pair(widened, outputs) if self.part.inputs == "left" else Pair(outputs, widened)


def _with_one(factor: Factor) -> Dense:
    assert not isinstance(factor, OneHot)
    return dataclasses.replace(factor, one=True)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A module that is watched, and what its parts add to which blocks."""

    name: str
    module: nn.Module
    rule: Rule
    shares: tuple[Share, ...]


@dataclasses.dataclass(frozen=True)
class Watched:
    """What is watched of a model.

    Args:
        units: the modules that rules speak for.
        blocks: what is logged.
        skipped: names of parameters that are not watched, and why.
        parameters: those of the blocks, by name.
        norms: modules that mix the examples of a batch in train mode, watched or not.
        plans: how the gradients of batches of a certain structure are taken; see ``_plan``.
        scattered: structures in which examples lie in no order, as where tokens are routed.
        rounded: structures in which rounding looks as if examples were mixed.
        buffers: tensors of the model, which belong to no example.
    """

    units: tuple[Unit, ...]
    blocks: tuple[Block, ...]
    skipped: tuple[tuple[str, str], ...]
    parameters: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    norms: tuple[tuple[str, nn.Module], ...] = ()
    plans: dict[Any, Any] = dataclasses.field(default_factory=dict, compare=False)
    scattered: set[Any] = dataclasses.field(default_factory=set, compare=False)
    rounded: set[Any] = dataclasses.field(default_factory=set, compare=False)
    buffers: Sequence[Tensor] = ()

    @property
    def numbers(self) -> Mapping[int, int]:
        """A number for each parameter, by its ``id``."""
        return self._numbers() if isinstance(self.parameters, LiveParameters) else self._known

    @functools.cached_property
    def _known(self) -> Mapping[int, int]:
        return self._numbers()

    def _numbers(self) -> Mapping[int, int]:
        return {id(each): number for number, each in enumerate(self.parameters.values())}

    def with_blocks(self, blocks: Sequence[Block]) -> Watched:
        """The same with other ranks."""
        new = {block.name: block for block in blocks}
        units = tuple(
            dataclasses.replace(
                unit,
                shares=tuple(
                    dataclasses.replace(share, block=new[share.block.name]) for share in unit.shares
                ),
            )
            for unit in self.units
        )
        return dataclasses.replace(
            self,
            units=units,
            blocks=tuple(blocks),
            plans={},
            scattered=set(),
            rounded=set(),
        )


def look_at(
    model: nn.Module,
    names: Names = None,
    types: type[nn.Module] | Sequence[type[nn.Module]] | None = None,
    uncovered: str = "error",
) -> Watched:
    """Find the layers of a model to watch.

    Args:
        model: it stays as it is.
        names: patterns of the names of modules or parameters, as ``"encoder.*"``, or a function.
        types: types of modules.
        uncovered: what to do about parameters that no rule covers: ``"error"``, ``"skip"`` them,
            or ``"func"``: differentiate their module example by example with ``torch.func``.

    Raises:
        ArgumentError: nothing fits, or an option is not valid.
        UncoveredError: names every parameter that no rule covers.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"watch takes a torch.nn.Module; got {type(model).__name__}.")
    one_of("uncovered", uncovered, UNCOVERED)
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
                f'names are patterns, as ["encoder.*", "head"], or a function, got {pattern!r}.'
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
            raise ArgumentError(f"types are types of modules, as [nn.Linear], got {each!r}.")
    return several


class _Search:
    """One walk over a model."""

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
        self._lost: dict[int, tuple[str, str]] = {}  # by parameter: the module that owns it
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
            self._skipped.append((full, "frozen"))
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
                f"The parameter {name!r} has complex numbers, whose gradients are not logged. "
                "Hint: keep it as nn.Parameter(torch.view_as_real(w)) and use "
                'torch.view_as_complex of it; or leave it out by names= or uncovered="skip".'
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
        said = {each for part in parts for each in (part.name, part.bias)}
        self._covered.update(id(p) for each, p in wanted.items() if each in said)
        rest = {each: p for each, p in wanted.items() if each not in said}
        if rest and self._uncovered == "func":
            fallback = general(tuple(rest))
            self._found.append((name, module, fallback, list(fallback.parts(module))))
            self._covered.update(map(id, rest.values()))
            return
        for each, tensor in rest.items():
            full = f"{name}.{each}" if name else each
            self._lost.setdefault(id(tensor), (full, type(module).__name__))

    def result(self) -> Watched:
        lost = [where for key, where in self._lost.items() if key not in self._covered]
        if lost and self._uncovered == "error":
            listed = "\n".join(f"  {name} (of {kind})" for name, kind in lost)
            raise UncoveredError(
                f"No layer rule covers {len(lost)} parameters:\n{listed}\n"
                'Hint: watch(model, uncovered="func") differentiates them with torch.func, '
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
        )

    def _shares(
        self, module: nn.Module, part: Part, tied: bool, blocks: dict[int, Block]
    ) -> list[Share]:
        """The weight and its bias are one block, unless the weight belongs to several modules."""
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
                f"The parameter {block.name!r} is shared by layers that see it in different "
                f"shapes, {block.shape} and {(*groups, rows, cols)}. Hint: leave one of them out "
                "by names=."
            )
        return Share(part, block, weight, bias)
