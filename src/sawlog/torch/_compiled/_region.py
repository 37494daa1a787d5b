"""``Region``: one compiled module, captured by traced hooks."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sawlog.torch._compiled._probes import Template, Trace, new_probe
from sawlog.torch._compiled._same_as_eager import difference, measured

_HOOK = -1  # the key of the traced hook, which no registered hook has


@dataclasses.dataclass(frozen=True)
class CallTemplate:
    """A layer call of a region, as it was when the region ran as written.

    Args:
        number: the number of the unit.
        output: its output; None if that needs no gradient.
        of_inputs: none of its arguments requires a gradient.
    """

    number: int
    output: Template | None
    of_inputs: bool


@dataclasses.dataclass(frozen=True)
class CompiledCall:
    """A layer call in compiled code.

    Args:
        template: the same call as it was when the region ran as written.
        args, kwargs: its arguments, detached.
        shape: of its output.
        output: the output, detached, if it is kept.
        probe: receives the gradient of the output.
    """

    template: CallTemplate
    args: Any
    kwargs: Any
    shape: tuple[int, ...]
    output: Tensor | None
    probe: Tensor | None


@dataclasses.dataclass(frozen=True)
class RegionOptions:
    """What is captured in a region.

    Args:
        own_hooks: the ids of hooks that belong to the capture.
        keeps_outputs: whether outputs of layers are logged.
        light: whether the gradients of parameters are not needed, only those of layer outputs.
    """

    own_hooks: frozenset[int]
    keeps_outputs: bool
    light: bool


class Region:
    """A module that is compiled for capture, and what is known about its calls.

    Args:
        name: the name of the module.
        module: the module.
        units: the watched modules in it, by number.
        norms: modules in it that mix the examples in train mode.
        backend: the backend of the user's ``torch.compile``.
        dynamic: its option of that name.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        units: Mapping[int, nn.Module],
        norms: Sequence[nn.Module],
        backend: Any,
        dynamic: bool | None,
    ) -> None:
        self.name, self.module, self._units, self._norms = name, module, units, norms
        self.backend, self.dynamic = backend, dynamic
        self.rejected: str | None = None
        self.templates: dict[Hashable, list[CallTemplate]] = {}
        self._verified: set[Hashable] = set()
        self._trace = Trace()
        self._hooks = {number: self._trace.hook(number) for number in units}
        self._function = self._compiled()

    def _compiled(self) -> Callable[..., Any]:
        """Return the compiled function; a backend of its own shares no code with the user's."""
        trace, module, chosen = self._trace, self.module, self.backend

        def backend(graph: Any, inputs: Any) -> Any:
            return chosen(graph, inputs)

        def run(args: Any, kwargs: Any, probes: Any, keeps_outputs: bool) -> Any:
            trace.probes, trace.keeps_outputs = probes, keeps_outputs
            trace.calls = []
            output = module._call_impl(*args, **kwargs)
            return output, trace.calls

        # A code object of its own, because the number of compiled versions of each is limited.
        run.__code__ = run.__code__.replace(co_name=f"run_{self.name}")
        return torch.compile(run, backend=backend, dynamic=self.dynamic)

    def mixes(self) -> bool:
        """Return whether a norm in it mixes the examples of a batch, which its own hook refuses."""
        return any(each.training or _has_no_statistics(each) for each in self._norms)

    def run(
        self, key: Hashable, args: Any, kwargs: Any, how: RegionOptions
    ) -> tuple[Any, list[CompiledCall]] | None:
        """Run the compiled module; None, and a reason in ``rejected``, if it cannot be.

        Args:
            key: the signature of the call.
            args, kwargs: the arguments of the module.
            how: what is captured.
        """
        template = self.templates[key]
        state = _random_state()
        try:
            if key not in self._verified:
                with warnings.catch_warnings():  # PyTorch warns about its own tracing
                    warnings.simplefilter("ignore", DeprecationWarning)
                    self._verify(template, args, kwargs, how)
                _set_random_state(state)
                if self.rejected is not None:
                    return None
                self._verified.add(key)
            return self._run(template, args, kwargs, how)
        except Exception as error:  # of the compiler, or of the module, which then raises it again
            text = f"{type(error).__name__}: {' '.join(str(error).split())}"
            self.rejected = f"it cannot be compiled with hooks: {text[:200]}"
            _set_random_state(state)
            return None

    def _run(
        self,
        template: Sequence[CallTemplate],
        args: Any,
        kwargs: Any,
        how: RegionOptions,
    ) -> tuple[Any, list[CompiledCall]] | None:
        probes = [None if each.output is None else new_probe(each.output) for each in template]
        with self._hooked(how.own_hooks), self._light(how.light), _compiling():
            output, calls = self._function(args, kwargs, probes, how.keeps_outputs)
        found = [(number, shape) for number, _, _, shape, _ in calls]
        wanted = [(e.number, s if e.output is None else e.output[0])
                  for e, (_, s) in zip(template, found, strict=False)]  # fmt: skip
        if found != wanted or len(found) != len(template):
            self.rejected = "compiled code called other layers than the module as written"
            return None
        several = [
            CompiledCall(each, own_args, own_kwargs, shape, kept, probe)
            for each, probe, (_, own_args, own_kwargs, shape, kept) in zip(
                template, probes, calls, strict=True
            )
        ]
        return output, several

    def _verify(
        self,
        template: Sequence[CallTemplate],
        args: Any,
        kwargs: Any,
        how: RegionOptions,
    ) -> None:
        """Compare outputs, inputs of layers and gradients with those of the module as written."""

        def by_probes(args: Any, kwargs: Any) -> Any:
            found = self._run(template, args, kwargs, how)
            if found is None:
                return None
            output, calls = found
            return output, [(call.args, call.kwargs, call.probe) for call in calls]

        def as_written(args: Any, kwargs: Any) -> Any:
            probes = [None if each.output is None else new_probe(each.output) for each in template]
            trace = self._trace
            trace.probes, trace.calls, trace.keeps_outputs = probes, [], False
            with self._hooked(how.own_hooks):
                output = self.module._call_impl(*args, **kwargs)
            several = zip(trace.calls, probes, strict=True)
            return output, [(call[1], call[2], probe) for call, probe in several]

        state = _random_state()
        parameters = [] if how.light else self._trained()
        expected = measured(as_written, args, kwargs, parameters)
        _set_random_state(state)
        found = measured(by_probes, args, kwargs, parameters)
        if self.rejected is None:
            self.rejected = difference(found, expected)

    def _trained(self) -> list[nn.Parameter]:
        return [each for each in self.module.parameters() if each.requires_grad]

    @contextlib.contextmanager
    def _light(self, light: bool) -> Iterator[None]:
        """Compute no gradients of parameters of what runs inside the ``with``."""
        trained = self._trained() if light else []
        for each in trained:
            each.requires_grad_(False)
        try:
            yield
        finally:
            for each in trained:
                each.requires_grad_(True)

    @contextlib.contextmanager
    def _hooked(self, own: frozenset[int]) -> Iterator[None]:
        """Replace the hooks of the capture by those that are traced, inside the ``with``."""
        hooked: dict[int, tuple[nn.Module, Any]] = {
            id(module): (module, self._hooks[number]) for number, module in self._units.items()
        }
        modules = [
            *hooked.values(),
            *((norm, None) for norm in self._norms if id(norm) not in hooked),
        ]
        before = [(module, module._forward_hooks) for module, _ in modules]
        for module, hook in modules:
            kept = ((k, v) for k, v in module._forward_hooks.items() if k not in own)
            module._forward_hooks = collections.OrderedDict(kept)
            if hook is not None:
                module._forward_hooks[_HOOK] = hook
                module._forward_hooks_with_kwargs[_HOOK] = True
        try:
            yield
        finally:
            for module, hooks in before:
                module._forward_hooks = hooks
                module._forward_hooks_with_kwargs.pop(_HOOK, None)


def _random_state() -> tuple[Tensor, list[Tensor]]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.random.get_rng_state(), devices


def _set_random_state(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.random.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])


def _has_no_statistics(norm: nn.Module) -> bool:
    return getattr(norm, "running_mean", None) is None


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Let code be compiled, with the random numbers of code as written."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("default"))
        if "torch._inductor" in sys.modules:
            import torch._inductor.config as config

            stack.enter_context(config.patch(fallback_random=True))
        yield
