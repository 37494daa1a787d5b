"""Names of modules without the prefixes of wrappers such as ``DistributedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

# The attribute with the wrapped module, by the type name of the wrapper.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "DeepSpeedEngine": "module",
    "AveragedModel": "module",
}


def inside_of(module: nn.Module) -> str | None:
    """Return the attribute with the module that a wrapper wraps; None for other modules."""
    for kind in type(module).__mro__:
        if kind.__module__.split(".")[0] in ("torch", "deepspeed") and kind.__name__ in _WRAPPERS:
            return _WRAPPERS[kind.__name__]
    return None


def bare(model: nn.Module) -> nn.Module:
    """Return the model inside wrappers such as ``DistributedDataParallel``.

    >>> from torch import nn
    >>> layer = nn.Linear(2, 2)
    >>> bare(nn.DataParallel(layer)) is layer
    True
    """
    while isinstance(inner := model._modules.get(inside_of(model) or ""), nn.Module):
        model = inner
    return model


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield each module once, with a name that leaves out wrappers.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.DataParallel(nn.Sequential(nn.Linear(2, 2))))
    >>> [name for name, _ in named_modules(model)]
    ['', '0', '0', '0.0']
    """
    yield from _walk(model, "", set())


def named_parameters(model: nn.Module) -> dict[int, str]:
    """Return the name of each parameter by ``id``; shared ones have their first name."""
    names: dict[int, str] = {}
    for name, module in named_modules(model):
        for key, parameter in module._parameters.items():
            if parameter is not None:
                names.setdefault(id(parameter), f"{name}.{key}" if name else key)
    return names


def _walk(module: nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    yield name, module
    inside = inside_of(module)
    for key, child in module._modules.items():
        if child is not None:
            own = name if key == inside else f"{name}.{key}" if name else key
            yield from _walk(child, own, seen)


def compiled_parts(model: nn.Module) -> list[str]:
    """Return the names of the modules that ``torch.compile`` was called on.

    >>> from torch import nn
    >>> compiled_parts(nn.Linear(2, 2))
    []
    """
    return [
        name or type(bare(module)).__name__
        for name, module in named_modules(model)
        if inside_of(module) == "_orig_mod" or module._compiled_call_impl is not None
    ]
