"""``log``: log named values from inside of a program."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sawlog.jax import _compat
from sawlog.jax._core import libraries, lowering_marks
from sawlog.jax._core.log_arguments import read_site
from sawlog.jax._core.primitive import is_listening, log_p
from sawlog.jax._logdict.entries import parts_of_site
from sawlog.jax._logdict.logdict import logdict


def log(*args: Any, **options: Any) -> Any:
    """Log named values from anywhere inside a JAX program.

    ``log(data, /, *, where=None, tags=(), prefix="", **steps)`` takes a dict of pytrees;
    ``log(name, value, /, *, reduction=None, where=None, tags=(), **steps)`` takes one value. Values
    are arrays of any dtype, PRNG keys, Python scalars, or pytrees of those. Every other keyword is
    a step axis: ``step=i, episode=e``. On its own a log does nothing; :func:`sawlog.spool`,
    :func:`sawlog.tap` and the loggers, applied to the function, collect, stream or store it.

    With ``where=condition`` an entry is logged only where the condition holds, as in a branch of
    ``lax.cond``. A condition with axes has one element for each lane, as under ``vmap``: all values
    must have these axes in front.

    Returns:
        A :class:`sawlog.logdict` of the given values, for programs that return logs themselves.
        None inside a branch, the body of a loop or the like, so that
        ``lax.cond(p, lambda: log(...), lambda: None)`` has branches of the same structure.

    >>> import jax, sawlog
    >>> @jax.jit
    ... def f(x):
    ...     sawlog.log({"x": x}, step=0)
    ...     sawlog.log({"negative": x}, where=x < 0)
    ...     return 2 * x
    >>> y, logs = sawlog.spool(f)(3.0)
    >>> print(y, logs["x"], logs.step["x"], list(logs))
    6.0 3.0 0 ['x']

    Raises:
        LogValueError: the arguments do not match a signature above, or a value is not an array or
            scalar.
    """
    site, operands = read_site(args, options, as_arrays=is_listening())
    if site is None:
        return _returned(logdict())
    if not is_listening():
        lowering_marks.check_not_selected(site)
    elif not libraries.only_probing():
        _support_jet()
        log_p.bind(*operands, site=site)
    given = [x.copy() if isinstance(x, np.ndarray) else x for x in operands]
    if site.masked:
        given = [np.asarray(x) if isinstance(x, (int, float, complex)) else x for x in given]
    logs = logdict._of(parts_of_site(site, site.split(given)))
    if site.masked:
        logs._settle_later()
    return _returned(logs)


def _returned(logs: logdict) -> logdict | None:
    return None if _compat.inside_inner_function() else logs


def _support_jet() -> None:
    """Log the primal value under ``jax.experimental.jet``, which has its own table of rules."""
    jet = sys.modules.get("jax.experimental.jet")
    if jet is not None:
        jet.jet_rules.setdefault(log_p, _log_primal)


def _log_primal(primals: Any, series: Any, **params: Any) -> tuple[list[Any], list[Any]]:
    del series
    log_p.bind(*primals, **params)
    return [], []
