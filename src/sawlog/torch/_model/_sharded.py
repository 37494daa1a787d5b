"""Models whose parameters are split over the processes of a job by ``fully_shard`` (FSDP2).

A proof differentiates a batch more than once, and processes have different batches. If every
backward pass gathered parameters, processes would wait for each other at different places. So all
parameters are gathered before a batch, stay whole until it has ended, and are split again. Only the
backward pass of the user reduces gradients over the processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from torch import Tensor, nn

from sawlog.errors import ArgumentError
from sawlog.torch._hooks._autograd_patches import around_backward
from sawlog.torch._model._names import named_modules


def is_split(tensor: Tensor) -> bool:
    """Return whether a tensor is a ``DTensor``, of which each process may have a part only."""
    return hasattr(tensor, "full_tensor")


class ShardedModel:
    """The parts of a model that ``fully_shard`` was called on; false if there are none.

    Args:
        model: the model; its parameters are split when this is created.

    Raises:
        ArgumentError: the model is split in another way.
    """

    def __init__(self, model: nn.Module) -> None:
        _refuse_other_splits(model)
        self._modules: list[Any] = [each for each in model.modules() if _is_sharded(each)]
        self._is_whole = False
        self.split()

    def __bool__(self) -> bool:
        return bool(self._modules)

    def split(self) -> None:
        """Split parameters again that an earlier forward pass left whole."""
        for module in self._modules:
            module.reshard()

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Keep all parameters whole inside the ``with``; all processes enter it together."""
        if self._is_whole or not self._modules:
            yield
            return
        before = [_Settings(module) for module in self._modules]
        for module in self._modules:
            module.set_reshard_after_backward(False, recurse=False)
            for group in _groups(module):
                group.post_forward_mesh_info = None
            module.unshard()
        self._is_whole = True
        try:
            yield
        except BaseException:
            reset = getattr(self._modules[0], "reset_iter_state", None)
            if reset is not None:
                reset()
            raise
        finally:
            self._is_whole = False
            for settings in before:
                settings.restore()
            self.split()

    @contextlib.contextmanager
    def reducing_once(self) -> Iterator[None]:
        """Reduce gradients in backward passes of the user only, not in those of a proof."""
        groups = [group for module in self._modules for group in _groups(module)]
        wanted = [group.reduce_grads for group in groups]

        @contextlib.contextmanager
        def of_user() -> Iterator[None]:
            _set_reduction(groups, wanted)
            try:
                yield
            finally:
                _set_reduction(groups, [False] * len(groups))

        _set_reduction(groups, [False] * len(groups))
        try:
            with around_backward(of_user):
                yield
        finally:
            _set_reduction(groups, wanted)


class LiveParameters(Mapping[str, Tensor]):
    """Parameters by name, as the modules have them now: whole or split.

    Args:
        model: the model.
        names: the names to include.
    """

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        places = {
            f"{name}.{key}" if name else key: (module._parameters, key)
            for name, module in named_modules(model)
            for key in module._parameters
        }
        self._places = {name: places[name] for name in names}

    def __getitem__(self, name: str) -> Tensor:
        own, key = self._places[name]
        tensor = own[key]
        assert tensor is not None
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class LiveTensors(Sequence[Tensor]):
    """All buffers and parameters of a model, as its modules have them now."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def _now(self) -> tuple[Tensor, ...]:
        return (*self._model.buffers(), *self._model.parameters())

    @overload
    def __getitem__(self, place: int) -> Tensor: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, place: int | slice) -> Tensor | Sequence[Tensor]:
        return self._now()[place]

    def __len__(self) -> int:
        return len(self._now())


class _Settings:
    """When a part of a model is split again, as the user has chosen it."""

    def __init__(self, module: Any) -> None:
        self._state = module._get_fsdp_state()
        self._begun = self._state._is_root is not None
        self._groups = [
            (group, group.post_forward_mesh_info, group.reshard_after_backward)
            for group in _groups(module)
        ]

    def restore(self) -> None:
        automatic = getattr(self._state, "_auto_reshard_after_forward", False)
        # What the first forward pass would have chosen for the root: not to split after it.
        chosen = not self._begun and self._state._is_root and automatic
        for group, mesh, after_backward in self._groups:
            group.post_forward_mesh_info = None if chosen else mesh
            group.reshard_after_backward = after_backward


def _is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "_get_fsdp_state") and hasattr(module, "unshard")


def sharding_groups(model: nn.Module) -> list[Any]:
    """Return the groups of parameters of a model that are gathered and reduced together."""
    return [group for each in model.modules() if _is_sharded(each) for group in _groups(each)]


def _groups(module: Any) -> list[Any]:
    state = module._get_fsdp_state()
    several = getattr(state, "_fsdp_param_groups", None)
    if several is None:
        several = [getattr(state, "_fsdp_param_group", None)]
    return [group for group in several if group is not None]


def _set_reduction(groups: Sequence[Any], wanted: Sequence[bool]) -> None:
    for group, each in zip(groups, wanted, strict=True):
        group.reduce_grads = each


def _refuse_other_splits(model: nn.Module) -> None:
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if "FullyShardedDataParallel" in kinds:
        raise ArgumentError(
            "The model is wrapped by FullyShardedDataParallel (FSDP1), which joins the parameters "
            "of several layers into one flat tensor, so their gradients cannot be told apart. "
            "Hint: use FSDP2, torch.distributed.fsdp.fully_shard(model), or log examples with the "
            "model before it is wrapped."
        )
    if not any(map(_is_sharded, model.modules())) and any(map(is_split, model.parameters())):
        raise ArgumentError(
            "Parameters of the model are DTensors that fully_shard does not manage, as of tensor "
            "parallelism; no process has their whole gradient. Hint: fully_shard(model), "
            "DistributedDataParallel, or one process."
        )
