"""Read and check the arguments of ``log``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sawlog.errors import LogValueError
from sawlog.jax import _compat
from sawlog.jax._core import arrays
from sawlog.jax._core.reductions import check_mode
from sawlog.jax._core.site import Site
from sawlog.jax._core.user_frames import caller


def read_site(
    args: tuple, options: dict[str, Any], *, as_arrays: bool
) -> tuple[Site | None, list[Any]]:
    """Return the site and the operands of a call of ``log``.

    The site is None if the values have no leaves. The operands are arrays of the active trace if
    ``as_arrays``, and otherwise the values that were given.

    Raises:
        LogValueError: the arguments do not match a signature of ``log``, or a value is not an array
            or scalar.
    """
    line = caller()
    options = dict(options)
    tags = _as_names(options.pop("tags", ()), "tags", line)
    where = options.pop("where", None)
    data, reduction = _read_arguments(args, options, line)
    flat = {key: jax.tree.flatten(value) for key, value in data.items()}
    flat = {key: (leaves, tree) for key, (leaves, tree) in flat.items() if leaves}
    for key, (leaves, _) in flat.items():
        for leaf in leaves:
            _check_value(leaf, f"the value of {key!r}", line)
    for name, step in options.items():
        _check_value(step, f"the step {name!r}", line)
    _check_where(where, flat, options, line)
    if not flat:
        return None, []
    steps = dict(sorted(options.items()))
    site = Site(
        keys=tuple(flat),
        trees=tuple(tree for _, tree in flat.values()),
        steps=tuple(steps),
        tags=tags,
        reduction=reduction,
        where=line,
        axes=tuple(options),
        batch=np.ndim(where) if where is not None else 0,
        masked=where is not None,
        conditional=where is not None,
    )
    operands = [leaf for leaves, _ in flat.values() for leaf in leaves]
    rest = list(steps.values())
    if as_arrays:
        operands, rest = list(map(_as_array, operands)), list(map(_as_array, rest))
    if where is None:
        return site, [*operands, *rest]
    mask = jnp.asarray(where)
    return site, [*operands, *(_for_lanes(step, mask) for step in rest), mask]


def _check_where(where: Any, flat: dict[str, Any], steps: dict[str, Any], line: str) -> None:
    """Check that ``where`` is boolean, and that all values and steps have its axes in front."""
    if where is None:
        return
    if not _compat.is_jax_value(where) or jnp.result_type(where) != np.dtype(bool):
        kind = getattr(where, "dtype", type(where).__name__)
        raise LogValueError(
            f"log at {line}: `where` must be a boolean, as in where=done; got {kind}. "
            "Hint: with where=x > 0 only entries with a positive x count."
        )
    lanes = np.shape(where)
    given = [(f"the value of {key!r}", x) for key, (leaves, _) in flat.items() for x in leaves]
    given += [(f"the step {name!r}", x) for name, x in steps.items() if np.ndim(x)]
    for what, x in given:
        if np.shape(x)[: len(lanes)] != lanes:
            raise LogValueError(
                f"log at {line}: `where` has the shape {lanes}, one condition for each lane, so "
                f"all values must have these axes in front; {what} has the shape {np.shape(x)}. "
                "Hint: broadcast it, or log it in a separate call."
            )


def _for_lanes(step: Any, mask: Any) -> Any:
    """Broadcast a step to the lanes of an array of conditions."""
    if np.ndim(step) >= mask.ndim:
        return step
    step = jnp.asarray(step)
    return arrays.broadcast(step, arrays.leading(mask, mask.ndim, step.dtype))


def _as_array(value: Any) -> Any:
    """Return a strongly typed array: ``1`` and ``int32(1)`` have the same type.

    It is in the memory of the device, where logs meet masks and states.
    """
    array = _compat.on_device(jnp.asarray(value))
    return lax.convert_element_type(array, array.dtype) if _compat.is_weak(array) else array


def _read_arguments(args: tuple, options: dict[str, Any], where: str) -> tuple[dict, Any]:
    if len(args) == 1 and isinstance(args[0], dict):
        prefix = options.pop("prefix", "")
        if not isinstance(prefix, str):
            raise LogValueError(f"log at {where}: `prefix` must be a string; got {prefix!r}.")
        if "reduction" in options:
            raise LogValueError(
                f"log at {where}: `reduction` is an option of logs with one value, as in "
                'log("loss", loss, reduction="mean"), not of those with a dict. Hint: use '
                "spool(f, reduce=...) or log the values one by one."
            )
        for key in args[0]:
            _check_key(key, where)
        return {prefix + key: value for key, value in args[0].items()}, None
    if len(args) == 2 and not isinstance(args[0], dict):
        _check_key(args[0], where)
        reduction = options.pop("reduction", None)
        if reduction is not None:
            check_mode(reduction)
        return {args[0]: args[1]}, reduction
    if len(args) == 2 and isinstance(args[0], dict):
        raise LogValueError(
            f"log at {where}: a step must be passed by name. Hint: log({{...}}, step={args[1]!r})"
        )
    got = ", ".join(type(arg).__name__ for arg in args) or "nothing"
    raise LogValueError(
        f"log at {where} takes a dict of values, as in log({{'loss': loss}}, step=i), or a name "
        f"and a value, as in log('loss', loss, step=i); it got {got}."
    )


#: What JAX prints for a value that is being traced, such as ``JitTracer(~int32[])``.
_TRACED_TEXT = re.compile(r"Traced<|\w*Tracer[<(]")


def _check_key(key: Any, where: str) -> None:
    if not isinstance(key, str) or not key:
        raise LogValueError(f"log at {where}: a name must be a non-empty string; got {key!r}.")
    if _TRACED_TEXT.search(key):
        raise LogValueError(
            f"log at {where}: the name {key!r} contains a traced value, whose number is not known "
            "while the program is traced. Hint: names are static; log the number as a step axis, "
            'as in log({"loss": loss}, layer=i), or use a Python number in the name.'
        )


def _check_value(value: Any, what: str, where: str) -> None:
    if not _compat.is_tracer(value) and isinstance(value, (int, float, np.generic, np.ndarray)):
        _check_number(np.asarray(value), what, where)
    if not _compat.is_jax_value(value) or isinstance(value, jax.ShapeDtypeStruct):
        raise LogValueError(
            f"log at {where}: {what} has the type {type(value).__name__}, which JAX does not "
            "support. Hint: log arrays, Python numbers, PRNG keys or pytrees of those."
        )
    if axes := _compat.unreduced_axes(value):
        raise LogValueError(
            f"log at {where}: {what} is not reduced over {', '.join(map(repr, axes))}: each device "
            "has a term of it. Hint: log jax.sharding.reshard(x, spec), with the spec of the sum."
        )


def _check_number(array: np.ndarray, what: str, where: str) -> None:
    """Check that JAX can represent a number; it would truncate bits silently."""
    kind = array.dtype.kind
    whole = kind == "O" and all(isinstance(x, int) for x in array.flat)  # too large for numpy
    if kind in "MmSU" or (kind == "O" and not whole):
        raise LogValueError(
            f"log at {where}: {what} has the dtype {array.dtype}, which JAX does not support. "
            "Hint: log arrays, Python numbers, PRNG keys or pytrees of those."
        )
    if not whole and (kind not in "iuf" or array.dtype.itemsize < 8):
        return
    to = jax.dtypes.canonicalize_dtype(np.int64 if whole else array.dtype)
    bounds = np.finfo(to) if kind == "f" else np.iinfo(to)
    known = array[np.isfinite(array)] if kind == "f" else array.reshape(-1)
    outside = known[(known < bounds.min) | (known > bounds.max)]
    if outside.size:
        raise LogValueError(
            f"log at {where}: {what} contains {outside[0]}, which does not fit into {to}; JAX "
            "would turn it into another number. Hint: log a float, split it into two numbers, "
            'or jax.config.update("jax_enable_x64", True).'
        )


def _as_names(names: Any, what: str, where: str) -> tuple[str, ...]:
    several = (names,) if isinstance(names, str) else names
    listed = tuple(several) if isinstance(several, Iterable) else (None,)
    if not all(isinstance(name, str) for name in listed):
        raise LogValueError(f"log at {where}: `{what}` must be a string or strings; got {names!r}.")
    return listed
