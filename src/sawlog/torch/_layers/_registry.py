"""The table of layer rules by type of module, and how a user adds one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.utils import parametrize

from sawlog.errors import ArgumentError
from sawlog.torch._layers._function import Function, FunctionRule
from sawlog.torch._layers._rule import Rule

_RULES: dict[type[nn.Module] | str, Rule] = {}
"""Rules by type, or by ``"package.module.Type"`` for packages that are not imported."""

_RECOGNIZERS: list[Callable[[nn.Module], Rule | None]] = []
"""Functions that return a rule for a module whose type is not registered, or None."""

_METHODS = ("forward", "_conv_forward")
"""Methods that compute; a subclass that overrides one of them needs its own rule."""

Registered = TypeVar("Registered", bound=type[Rule] | Callable[..., Mapping[str, Any]])


def register_layer(
    module_type: type[nn.Module] | str, *, whole: bool = False
) -> Callable[[Registered], Registered]:
    """Register how to compute per-example gradients of a type of module.

    Decorate a function ``rule(module, use)``. For each parameter of the module it returns one of

    - the gradients of the examples, ``[batch, *parameter.shape]``,
    - factors ``(left, right)``, ``[batch, positions, rows]`` and ``[batch, positions, cols]``,
      whose outer products summed over positions are those gradients (``rows`` is the first axis
      of the parameter, ``cols`` are all others),
    - a :class:`~sawlog.factored.Pair`.

    ``use.args`` and ``use.kwargs`` are the arguments of the module, ``use.grad`` is the gradient of
    its output, ``use.batch`` the number of examples, and ``use.axis`` their axis.

    Or decorate a subclass of :class:`Rule`, which can also declare that a bias is one more column
    of a weight. A second rule for the same type replaces the first.

    Args:
        module_type: the type, or ``"package.module.Type"`` for one that need not be imported. The
            rule also covers subclasses with the same ``forward``.
        whole: whether the function covers the parameters of submodules too, under names such as
            ``"inner.weight"``.

    Raises:
        ArgumentError: ``module_type`` is not a type of module, or the decorated object not a rule.

    >>> import torch
    >>> class Scale(nn.Module):
    ...     def __init__(self, n):
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.ones(n))
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> @register_layer(Scale)
    ... def scale_rule(module, use):
    ...     return {"weight": use.args[0] * use.grad}
    """
    if not _is_module_type(module_type):
        raise ArgumentError(
            f"`module_type` must be a subclass of torch.nn.Module; got {module_type!r}. Hint: "
            "`@register_layer(MyLayer)`."
        )

    def register(rule: Registered) -> Registered:
        _RULES[module_type] = _made(rule, whole)
        return rule

    return register


def recognizer(
    recognize: Callable[[nn.Module], Rule | None],
) -> Callable[[nn.Module], Rule | None]:
    """Register a function that recognizes modules by what they compute."""
    _RECOGNIZERS.append(recognize)
    return recognize


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule for a module; None if no rule covers it.

    It is the rule of its type, or of the nearest base class, provided that the module computes the
    same: not if it overrides ``forward``, or computes its weights from others. A module of another
    type may be recognized by what it computes.
    """
    if parametrize.is_parametrized(module):
        return None
    for kind in type(module).__mro__:
        rule = _RULES.get(kind) or _RULES.get(f"{kind.__module__}.{kind.__qualname__}")
        if rule is not None and _computes_as(module, kind):
            return rule
        if rule is not None:
            break
    if not _computes_as(module, type(module)):
        return None
    found = (recognize(module) for recognize in _RECOGNIZERS)
    return next((rule for rule in found if rule is not None), None)


def _computes_as(module: nn.Module, kind: type) -> bool:
    """Return whether the class and the instance use the computing methods of this type."""
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):  # accelerate moves devices
        return False
    return all(getattr(type(module), m, None) is getattr(kind, m, None) for m in _METHODS)


def _is_module_type(kind: Any) -> bool:
    return isinstance(kind, str) or (inspect.isclass(kind) and issubclass(kind, nn.Module))


def _made(rule: type[Rule] | Function, whole: bool) -> Rule:
    if inspect.isclass(rule) and issubclass(rule, Rule):
        return rule()
    if inspect.isclass(rule) or isinstance(rule, Tensor) or not callable(rule):
        raise ArgumentError(
            "A layer rule must be a function `rule(module, use)` or a subclass of Rule; got "
            f"{rule!r}."
        )
    return FunctionRule(rule, whole)
