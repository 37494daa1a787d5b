"""Check that a model still has the modules and parameters that were found when it was watched.

Hooks and rules belong to objects. If a parameter or a module is replaced, the new object is
used without being seen, and its rows would be zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sawlog.errors import CaptureError
from sawlog.torch._model._names import named_modules
from sawlog.torch._model._sharded import LiveParameters

_HINT = "Hint: call run.watch(model) again, after all changes of the model."


class ModelPlaces:
    """Where a model has its watched parameters, and the modules that lead to them.

    Args:
        model: the model.
        parameters: the watched parameters, by name.
        frozen: the names of parameters that were not watched because they were frozen.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, Tensor], frozen: Collection[str] = ()
    ) -> None:
        live = isinstance(parameters, LiveParameters)  # other objects while they are whole
        watched = {id(each) for each in parameters.values()}
        self._modules: list[tuple[dict[str, Any], str, nn.Module, str]] = []
        self._parameters: list[tuple[dict[str, Any], str, Tensor, str]] = []
        self._frozen: list[tuple[str, Tensor]] = []
        for name, module in named_modules(model):
            prefix = f"{name}." if name else ""
            for key, child in module._modules.items():
                if child is not None and any(id(each) in watched for each in child.parameters()):
                    self._modules.append((module._modules, key, child, prefix + key))
            for key, tensor in module._parameters.items():
                if tensor is None:
                    continue
                if id(tensor) in watched and not live:
                    self._parameters.append((module._parameters, key, tensor, prefix + key))
                if prefix + key in frozen and not live:
                    self._frozen.append((prefix + key, tensor))

    def check(self) -> None:
        """Check the model before a batch.

        Raises:
            CaptureError: a module or parameter was replaced, frozen, or is trained only now.
        """
        for modules, key, child, name in self._modules:
            if modules.get(key) is not child:
                raise _replaced("module", name)
        for parameters, key, tensor, name in self._parameters:
            if parameters.get(key) is not tensor:
                raise _replaced("parameter", name)
            if not tensor.requires_grad:
                raise CaptureError(
                    f"The parameter {name!r} was frozen (requires_grad=False) since watch was "
                    f"called, so it has no gradients to log. {_HINT}"
                )
        trained = [name for name, tensor in self._frozen if tensor.requires_grad]
        if trained:
            raise CaptureError(
                f"{_listed(trained)} frozen when watch was called, and requires_grad was set to "
                f"True since, so gradients would be missing. {_HINT} Or choose by names= what to "
                "log."
            )


def _replaced(what: str, name: str) -> CaptureError:
    return CaptureError(
        f"The {what} {name!r} of the model was replaced by another object since watch was called "
        f"(load_state_dict(assign=True), adapters and parametrizations do that). {_HINT}"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" * (len(names) > 3))
    return f"The parameters {shown} were" if len(names) > 1 else f"The parameter {shown} was"
