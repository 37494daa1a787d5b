"""The programs of ``logger.run``: a function of one seed, mapped over many."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import jax

from sawlog._validate import refuse
from sawlog.errors import ArgumentError
from sawlog.jax._core.functions import check_callable, weak_reference
from sawlog.jax._logdict.logdict import logdict
from sawlog.jax._transforms.spool import spool
from sawlog.jax._transforms.strip import without_new_logs

Axes = Sequence[int | None] | None
_STATIC = ("static_argnums", "static_argnames")


def program(
    known: MutableMapping[Any, Any], fun: Callable[..., Any], in_axes: Axes, options: dict[str, Any]
) -> Callable[..., tuple[Any, logdict]]:
    """Return the program of ``fun`` for these options: ``call(lanes, *args, **kwargs)``.

    ``known`` caches programs by function, so that none is compiled twice.
    """
    check_callable(fun, "run")
    _check_axes(in_axes)
    try:
        key = (None if in_axes is None else tuple(in_axes), tuple(sorted(options.items())))
        programs = known.setdefault(fun, {})
        if key not in programs:
            programs[key] = _Programs(fun, in_axes, options)
        return programs[key]
    except TypeError:  # not hashable, or without weak references
        return _Programs(fun, in_axes, options)


class _Programs:
    """The programs of a function: one for each number of axes of its seeds."""

    def __init__(self, fun: Callable[..., Any], in_axes: Axes, options: dict[str, Any]) -> None:
        self._fun = weak_reference(fun)
        self._name = getattr(fun, "__name__", type(fun).__name__)
        self._in_axes = in_axes
        self._static = {name: options[name] for name in _STATIC if name in options}
        self._options = {name: value for name, value in options.items() if name not in _STATIC}
        spool(fun, **self._options)  # check the options before anything runs
        self._by_depth: dict[int, Callable[..., Any]] = {}

    def __call__(self, lanes: tuple[int, ...], *args: Any, **kwargs: Any) -> tuple[Any, logdict]:
        depth = len(lanes)
        if depth not in self._by_depth:
            self._by_depth[depth] = self._program(depth)
        return self._by_depth[depth](*args, **kwargs)[0]

    def _program(self, depth: int) -> Callable[..., Any]:
        """Map ``fun``, with its logs as outputs, ``depth`` times; drop logs not selected."""

        def mapped(*args: Any, **kwargs: Any) -> Any:
            fun = spool(self._fun(), **self._options)
            axes = axes_of(self._in_axes, len(args))
            return _mapped(lambda *args: fun(*args, **kwargs), axes, depth)(*args)

        mapped.__name__ = mapped.__qualname__ = self._name
        mapped.__wrapped__ = self._fun()  # type: ignore[attr-defined]
        return spool(without_new_logs(mapped), **self._static)


def _mapped(fun: Callable[..., Any], axes: tuple[int | None, ...], depth: int) -> Any:
    """Map ``fun`` by ``vmap`` over the mapped arguments only; others may be any object."""

    def call(*args: Any) -> Any:
        def inner(own: list[Any]) -> Any:
            rest, pairs = iter(own), zip(args, axes, strict=True)
            return fun(*(arg if axis is None else next(rest) for arg, axis in pairs))

        own = [arg for arg, axis in zip(args, axes, strict=True) if axis is not None]
        inside = [axis for axis in axes if axis is not None]
        return jax.vmap(inner, in_axes=(inside,))(own)

    return fun if depth == 0 else _mapped(call, axes, depth - 1)


def axes_of(in_axes: Axes, count: int) -> tuple[int | None, ...]:
    """Return the mapped axis of each argument.

    Raises:
        ArgumentError: ``in_axes`` has another length.
    """
    if in_axes is None:
        return (0, *[None] * (count - 1))
    if len(in_axes) != count:
        raise ArgumentError(
            f"`in_axes` has {len(in_axes)} axes, and the function was called with {count} "
            "arguments. Hint: give one axis for each positional argument, 0 for the first: "
            "logger.run(train, in_axes=(0, None))(keys, lr)."
        )
    return tuple(in_axes)


def _check_axes(in_axes: Any) -> None:
    fine = in_axes is None or (
        isinstance(in_axes, tuple | list)
        and in_axes[:1] in ((0,), [0])
        and all(axis is None or type(axis) is int for axis in in_axes)
    )
    if not fine:
        hint = "logger.run(train, in_axes=(0, None, 0))(keys, x, lrs)."
        refuse("in_axes", "a tuple as for jax.vmap, with 0 for the keys first", in_axes, hint)


def settings(
    config: Any, lanes: tuple[int, ...], in_axes: Axes, args: tuple, kwargs: dict[str, Any]
) -> Iterator[Mapping[str, Any]]:
    """Return the config of each lane."""
    axes = axes_of(in_axes, len(args))
    for lane in itertools.product(*map(range, lanes)):
        if callable(config):
            own = functools.reduce(functools.partial(_lane_of, axes), lane, args)
            yield config(*own, **kwargs)
        else:
            yield config or {}


def _lane_of(axes: tuple[int | None, ...], args: tuple, lane: int) -> tuple:
    def of(arg: Any, axis: int | None) -> Any:
        if axis is None:
            return arg
        return jax.tree.map(lambda x: x[(slice(None),) * axis + (lane,)], arg)

    return tuple(of(*pair) for pair in zip(args, axes, strict=True))
