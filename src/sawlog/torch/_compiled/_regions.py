"""Find the compiled modules of a model, and capture their calls."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from sawlog.errors import CompiledModelWarning
from sawlog.torch._compiled._probes import tensors_in
from sawlog.torch._compiled._region import CallTemplate, CompiledCall, Region, RegionOptions
from sawlog.torch._compiled._signature import signature_of
from sawlog.torch._model._names import inside_of, named_modules

_LEAST = 2  # watched modules in a region


class RegionListener(Protocol):
    """The hooks of one batch, which compiled regions report to."""

    quiet: bool

    def region_options(self) -> RegionOptions:
        """Return what is captured."""

    def is_confirmed(self, key: Hashable) -> bool:
        """Return whether a signature was proven in this pass, for light regions."""

    def started(self) -> int:
        """Return the number of layer calls so far."""

    def templates_since(self, start: int) -> list[CallTemplate] | None:
        """Return the calls since then as templates; None if some call cannot be repeated."""

    def add_compiled(self, calls: Sequence[CompiledCall]) -> None:
        """Add layer calls of compiled code."""


class CompiledRegions:
    """The regions of a model that stay compiled while its batches are captured.

    The first batch of each shape runs as it is written, and is proven. The next one is compiled
    with traced hooks, compared with the module as written, and proven again.

    Args:
        model: the model.
        units: the watched modules.
        norms: modules that mix the examples in train mode.
    """

    def __init__(
        self, model: nn.Module, units: Sequence[nn.Module], norms: Sequence[nn.Module]
    ) -> None:
        self._units, self._norms = list(units), list(norms)
        self._names = {id(module): name for name, module in named_modules(model)}
        self.regions: list[Region] = []
        self.said: list[str] = []
        self.prefers_eager = False
        """Whether the last backward pass computed only logs, which eager code does faster."""
        for module, compiled in compiled_modules(model):
            if not any(_contains(region.module, module) for region in self.regions):
                options = _options_of(compiled)
                reason = self._add(module, *options)
                if reason is not None:
                    self._add_parts(module, reason, *options)

    @property
    def have_run(self) -> bool:
        """Whether modules may run compiled in the next batch."""
        return any(region.templates for region in self.regions)

    def __bool__(self) -> bool:
        return bool(self.regions or self.said)

    def _name_of(self, module: nn.Module) -> str:
        return self._names.get(id(module)) or type(module).__name__

    def _add(self, module: nn.Module, backend: Any, dynamic: bool | None) -> str | None:
        """Add a module as a region; return why not, if it is not."""
        inside = {id(each) for each in module.modules()}
        units = {n: unit for n, unit in enumerate(self._units) if id(unit) in inside}
        if any(unit is module for unit in units.values()):
            return "it is differentiated as a whole, example by example"
        if len({id(unit) for unit in units.values()}) < _LEAST:
            return "it has fewer than two watched layers"
        if getattr(backend, "config", {}).get("triton.cudagraphs"):
            return "CUDA graphs write over the tensors of earlier batches"
        norms = [norm for norm in self._norms if id(norm) in inside]
        name = self._name_of(module)
        self.regions.append(Region(name, module, units, norms, backend, dynamic))
        return None

    def reject(self, region: Region, reason: str) -> None:
        """Run a region as it is written from now on, and try the modules in it instead."""
        if region not in self.regions:
            return
        self.regions.remove(region)
        self._add_parts(region.module, reason, region.backend, region.dynamic)

    def _add_parts(
        self, module: nn.Module, reason: str, backend: Any, dynamic: bool | None
    ) -> None:
        """Add the modules in a module as regions, and say why the module itself is not one."""
        added = [each for each in _parts(module) if self._add(each, backend, dynamic) is None]
        rest = f". {len(added)} modules in it stay compiled" if added else ""
        self.said.append(
            f"The compiled module {self._name_of(module)!r} runs as it was written inside of "
            f"`with run(...)`: {reason}{rest}."
        )

    def warn(self) -> None:
        """Warn about the regions that were rejected, each once."""
        for text in self.said:
            warnings.warn(text, CompiledModelWarning, stacklevel=6)
        self.said.clear()

    @contextlib.contextmanager
    def installed(self, listener: RegionListener) -> Iterator[BatchRegions]:
        """Run regions compiled inside the ``with``, where their signature is known."""
        batch = BatchRegions(self, listener)
        self.warn()
        before = [(region.module, region.module.__dict__.get("_compiled_call_impl", _NOT_SET))
                  for region in self.regions]  # fmt: skip
        for region in self.regions:
            region.module.__dict__["_compiled_call_impl"] = batch.caller(region)
        try:
            with _keeping_buffers():
                yield batch
        finally:
            for module, call in before:
                if call is _NOT_SET:
                    module.__dict__.pop("_compiled_call_impl", None)
                else:
                    module.__dict__["_compiled_call_impl"] = call
            self.warn()


class BatchRegions:
    """The regions in one batch.

    Args:
        regions: those of the model.
        listener: the hooks of the batch.
    """

    def __init__(self, regions: CompiledRegions, listener: RegionListener) -> None:
        self._regions, self._listener = regions, listener
        self._pending: list[tuple[Region, Hashable, list[CallTemplate]]] = []
        self.ran_compiled = self.ran_light = False

    def caller(self, region: Region) -> Callable[..., Any]:
        """Return what runs in place of the module of a region."""

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(region, args, kwargs)

        return call

    def _call(self, region: Region, args: Any, kwargs: Any) -> Any:
        listener, module = self._listener, region.module
        again = torch._C._current_graph_task_id() != -1
        if region.rejected or again or listener.quiet or not torch.is_grad_enabled():
            return module._call_impl(*args, **kwargs)
        how = listener.region_options()
        key = signature_of(module, args, kwargs, (how.keeps_outputs, how.light))
        known = key is not None and key in region.templates and not region.mixes()
        chosen = listener.is_confirmed(key) if how.light else not self._regions.prefers_eager
        if known and chosen:
            found = region.run(key, args, kwargs, how)
            if found is not None:
                output, calls = found
                listener.add_compiled(calls)
                self.ran_compiled, self.ran_light = True, how.light
                return output
            self._regions.reject(region, region.rejected or "")
            return module._call_impl(*args, **kwargs)
        start = listener.started()
        output = module._call_impl(*args, **kwargs)
        self._note(region, key, start, output)
        return output

    def _note(self, region: Region, key: Hashable | None, start: int, output: Any) -> None:
        """Remember the layer calls of a region that ran as it is written."""
        if any(each.requires_grad and not each.dim() for each in tensors_in(output)):
            self._reject(region, "it computes the loss, whose graph would be hidden")
            return
        if key is None:
            self._reject(region, "its arguments are of types that are not known")
            return
        template = self._listener.templates_since(start)
        if template is None:
            self._reject(region, "a layer in it returns something else than tensors")
        elif template:
            self._pending.append((region, key, template))

    def _reject(self, region: Region, reason: str) -> None:
        region.rejected = reason
        self._regions.reject(region, reason)

    def confirm(self, problem: Callable[[nn.Module], str | None]) -> list[Hashable]:
        """Allow the regions of this batch to run compiled from now on, unless there is a problem.

        Args:
            problem: returns why a module must run as it is written; None if it need not.

        Returns:
            The signatures of regions that are allowed.
        """
        allowed = []
        for region, key, template in self._pending:
            reason = problem(region.module)
            if reason is None:
                region.templates[key] = template
                allowed.append(key)
            elif region.rejected is None:
                self._reject(region, reason)
        self._pending.clear()
        return allowed


def compiled_modules(model: nn.Module) -> Iterator[tuple[nn.Module, Any]]:
    """Yield the modules that ``torch.compile`` was called on, and what it returned."""
    for _, module in named_modules(model):
        if inside_of(module) == "_orig_mod":
            yield module._modules["_orig_mod"], module  # type: ignore[misc]
        elif module._compiled_call_impl is not None:
            yield module, module._compiled_call_impl


def _options_of(compiled: Any) -> tuple[Any, bool | None]:
    """Return the backend and the option ``dynamic`` of a compiled module or function."""
    from torch._dynamo import eval_frame

    context = getattr(compiled, "dynamo_ctx", None)
    for cell in getattr(compiled, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            if isinstance(cell.cell_contents, eval_frame._TorchDynamoContext):
                context = cell.cell_contents
    callback = getattr(context, "callback", None)
    if not callable(callback):
        return eval_frame.get_compiler_fn("inductor"), None
    return eval_frame.innermost_backend(callback), getattr(context, "_dynamic", None)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules in a module, those of lists one by one."""
    for child in module.children():
        if type(child) in (nn.ModuleList, nn.ModuleDict):
            yield from _parts(child)
        else:
            yield child


def _contains(outer: nn.Module, inner: nn.Module) -> bool:
    return any(each is inner for each in outer.modules())


@contextlib.contextmanager
def _keeping_buffers() -> Iterator[None]:
    """Let compiled backward passes be repeated, as proofs do."""
    import torch._functorch.config as config

    with config.patch(donated_buffer=False):
        yield


_NOT_SET: Any = object()
