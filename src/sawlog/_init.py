"""``sawlog.init``: a run whose framework is that of the model that it watches first."""

from __future__ import annotations

import os
import sys
from typing import Any

from sawlog._current_run import set_current
from sawlog._optional import require
from sawlog.capture._backend import ProcessGroup
from sawlog.capture._run import CaptureRun
from sawlog.errors import ArgumentError, CaptureError
from sawlog.run_files._blocks import Report
from sawlog.run_files._logix_config import is_logix, load


def init(project: str, config: Any = None, **options: Any) -> CaptureRun:
    """Create a run, or continue an existing one, and make it the current run.

    ``run.watch(model)`` with a ``torch.nn.Module`` makes it a :class:`sawlog.torch.Run`,
    ``run.watch(loss_fn, params, batch)`` a :class:`sawlog.jax.JaxRun`. Neither framework is
    imported before.

    Args:
        project: the name of the run, a folder in ``root``.
        config: the options of :meth:`~sawlog.capture.CaptureRun.setup`, or the path of a YAML file.
            If it has the sections of LogIX, as ``lora``, or is an empty file, the run is a
            :class:`sawlog.logix.LogIX`.
        options: ``root``, ``exists`` and ``sinks`` of :class:`sawlog.capture.CaptureRun`.

    >>> import tempfile, sawlog
    >>> run = sawlog.init(project="example", root=tempfile.mkdtemp())
    >>> run.setup(log="grad", compress=16)
    """
    said = load(config) if isinstance(config, (str, os.PathLike)) else config
    if is_logix(said) or (said == {} and said is not config):
        return _logix_run(project, said, **options)
    run = UnboundRun(project, config=config, **options)
    set_current(run)
    return run


class UnboundRun(CaptureRun):
    """A run before it watches anything: everything of a run that needs no framework."""

    def _process_group(self) -> ProcessGroup | None:
        """Return the processes of a job of ``torch.distributed`` or ``jax.distributed``."""
        jax = sys.modules.get("jax")
        if jax is not None and jax.distributed.is_initialized():
            from sawlog.jax._capture_run.processes import process_group as of_jax

            return of_jax()
        if "torch.distributed" in sys.modules:
            from sawlog.torch._processes import process_group as of_torch

            return of_torch()
        return None

    def watch(self, model: Any, *args: Any, **options: Any) -> Report:
        """Watch a model, and become a run of its framework.

        ``run.watch(model)`` takes a ``torch.nn.Module``, see :meth:`sawlog.torch.Run.watch`, and
        ``run.watch(loss_fn, params, batch)`` a JAX function, see :meth:`sawlog.jax.JaxRun.watch`.

        Raises:
            ArgumentError: the model is neither.
        """
        torch = sys.modules.get("torch")
        is_module = torch is not None and isinstance(model, torch.nn.Module)
        if not is_module and not _looks_like_jax(model, args, options):
            raise ArgumentError(
                f"run.watch cannot watch {type(model).__name__} like this. Hint: run.watch(model) "
                "with a torch.nn.Module, or run.watch(loss_fn, params, batch) with a JAX function "
                "that returns one loss for each example."
            )
        self.__class__ = _torch_run() if is_module else _jax_run()  # type: ignore[assignment]
        return self.watch(model, *args, **options)

    def backward(self, loss: Any) -> None:
        """Raise: only a run of PyTorch that watches a model can do this."""
        del loss
        raise CaptureError(
            "Call run.backward(loss) inside `with run(data_id=ids):`, after run.watch(model)."
        )

    def record(self, *args: Any, **options: Any) -> Any:
        """Raise: only a run that watches a JAX function can do this."""
        del args, options
        raise ArgumentError("No function is watched yet. Hint: run.watch(loss_fn, params, batch).")

    def extract(self, *args: Any, **options: Any) -> Any:
        """Log every example; a JAX function that is not watched yet is watched first.

        See :meth:`sawlog.jax.JaxRun.extract`; a PyTorch model needs :meth:`watch` before.
        """
        if len(args) > 2 and _looks_like_jax(args[0], args[1:], {"batch": None}):
            self.__class__ = _jax_run()  # type: ignore[assignment]
            return self.extract(*args, **options)
        return super().extract(*args, **options)


def _looks_like_jax(model: Any, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
    given = len(args) + len({"params", "batch"} & {*options})
    return callable(model) and given >= 2


def _logix_run(project: str, config: Any, **options: Any) -> CaptureRun:
    require("torch", "torch", "A configuration of LogIX")
    from sawlog.logix import init

    return init(project, config, **options)


def _torch_run() -> type[CaptureRun]:
    from sawlog.torch import Run

    return Run


def _jax_run() -> type[CaptureRun]:
    from sawlog.jax import JaxRun

    return JaxRun
