"""``sawlog.log``: to JAX's transformations in a JAX program, and else to the sinks of the run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from sawlog import _current_run
from sawlog._optional import is_installed
from sawlog.errors import ArgumentError


def log(*args: Any, **options: Any) -> Any:
    """Log named values: ``log({"loss": loss}, step=i)``, or ``log("loss", loss, step=i)``.

    In a JAX program this is :func:`sawlog.jax.log`: the values become part of the program, and
    :func:`sawlog.spool`, :func:`sawlog.tap` or a logger collects them.

    Anywhere else, such as in a plain PyTorch loop, the values are written to the sinks of the
    current run, as ``run.log`` does; ``sawlog.init(project)`` creates one. Values are tensors,
    arrays, Python numbers, or nested dicts of them, which are named like ``loss/policy``. Every
    other keyword is a step axis.

    Returns:
        In a JAX program, a :class:`sawlog.logdict` of the values, or None inside a branch or loop
        body; else None.

    Raises:
        ArgumentError: JAX is not imported, and no run is current.
        LogValueError: the arguments have another form, or a value is not an array or number.
    """
    run = _current_run.get()
    if "jax" in sys.modules and (run is None or _is_for_jax(args, options)):
        return _jax().log(*args, **options)
    if run is None:
        install = "" if is_installed("jax") else ' Programs of JAX need pip install "sawlog[jax]".'
        raise ArgumentError(
            "sawlog.log was called outside of a JAX program, and no run is current. Hint: call "
            f'sawlog.init("my_project") first, or write to a sink by sink.write(records).{install}'
        )
    run.log(*args, **options)
    return None


def _is_for_jax(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Return whether a call is inside a transformation of JAX or sawlog, or has a JAX array."""
    compat = importlib.import_module("sawlog.jax._compat")
    core = "sawlog.jax._core."
    listening = importlib.import_module(core + "primitive").is_listening()
    stripping = importlib.import_module(core + "lowering_marks").is_stripping()
    if listening or stripping or not compat.not_tracing():
        return True
    return _holds_jax_array((args, options), sys.modules["jax"].Array)


def _jax() -> Any:
    return importlib.import_module("sawlog.jax")


def _holds_jax_array(value: Any, kind: type) -> bool:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return any(_holds_jax_array(each, kind) for each in value)
    return isinstance(value, kind)
