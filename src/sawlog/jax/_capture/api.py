"""``capture``: per-example gradients of a loss function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from sawlog._validate import one_of
from sawlog.errors import ArgumentError
from sawlog.factored import Projection
from sawlog.jax import _compat
from sawlog.jax._capture.captured import Captured
from sawlog.jax._capture.parameters import (
    Names,
    Static,
    batch_axes_of,
    examples_of,
    leaf_names,
    watched,
)
from sawlog.jax._capture.plan import CapturePlan
from sawlog.jax._capture.program import CaptureProgram, Key, Request, random_matrices
from sawlog.jax._core.user_frames import stack_level

KINDS = ("grad", "pairs")


def capture(
    loss_fn: Callable[..., Any],
    *,
    reduction: str = "none",
    has_aux: bool = False,
    batch_axes: Any = 0,
    names: Names = None,
    what: Sequence[str] = ("grad",),
    projection: Mapping[str, Any] | int | None = None,
    prove: bool = False,
) -> Capture:
    """Return a function that computes the gradient of each example of a batch.

    The loss function is traced, and one backward pass for the whole batch fills the gradients of
    all examples. There is nothing to change in the model, whichever library it is written in.

    Args:
        loss_fn: ``loss_fn(params, batch)`` returns one loss for each example, ``[examples]``.
        reduction: ``"sum"`` or ``"mean"`` if the loss function returns a scalar instead: the sum or
            the mean of the losses of its examples.
        has_aux: Whether the loss function returns ``(losses, aux)``.
        batch_axes: Where the leaves of the batch have their examples: an integer, or a pytree
            prefix of the batch as for ``in_axes`` of ``jax.vmap``. None marks a leaf that all
            examples share, such as a random key. Scalars are always shared.
        names: Which parameters to watch: patterns such as ``"*/kernel"``, or a function of the
            name. By default all of them.
        what: ``"grad"`` for gradients, ``"pairs"`` for the factors of each use.
        projection: Project the gradients of each block on both sides: a rank, or for each block
            ``(left, right)``, the matrices for its rows ``[rows, rank]`` and its columns
            ``[columns, rank]``, where None leaves a side whole.
        prove: Also compute the gradient of the batch, for ``Captured.check``.

    Returns:
        ``captured(params, batch)``, which returns a :class:`Captured` and can be called inside
        ``jax.jit``.

    Raises:
        ArgumentError: An argument is invalid.
        CaptureError: When called: the examples cannot be separated. The message names the equation
            and its source line.

    >>> import jax.numpy as jnp, sawlog
    >>> def loss_fn(params, batch):
    ...     prediction = batch["x"] @ params["w"] + params["b"]
    ...     return ((prediction - batch["y"]) ** 2).sum(-1)
    >>> params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    >>> batch = {"x": jnp.ones((4, 3)), "y": jnp.zeros((4, 2))}
    >>> captured = sawlog.jax.capture(loss_fn)(params, batch)
    >>> {name: rows.shape for name, rows in captured.grads.items()}
    {'b': (4, 2), 'w': (4, 3, 2)}
    """
    one_of("reduction", reduction, ("none", "sum", "mean"))
    unknown = [kind for kind in what if kind not in KINDS]
    if isinstance(what, str) or unknown:
        listed = ", ".join(map(repr, KINDS))
        raise ArgumentError(f"`what` must be a sequence of {listed}; got {what!r}.")
    request = Request(loss_fn, reduction, has_aux, tuple(what), prove)
    return Capture(request, batch_axes, names, projection)


class Capture:
    """What :func:`capture` returns: call it with parameters and a batch."""

    def __init__(self, request: Request, batch_axes: Any, names: Names, projection: Any) -> None:
        self._request, self._batch_axes, self._names = request, batch_axes, names
        self._rank = projection if isinstance(projection, int) else None
        self._matrices = None if self._rank is not None else _as_tuples(projection)
        self._made: dict[Any, dict[str, Any]] = {}
        self._jitted = jax.jit(self._compute, static_argnums=(0,))
        self._warned: set[tuple[str, str]] = set()

    def __call__(self, params: Any, batch: Any) -> Captured:
        """Return the losses, gradients and factors of a batch."""
        key, arrays = self._key(params, batch)
        return self._jitted(key, *arrays, self._projection(key, *arrays))

    def plan(self, params: Any, batch: Any) -> CapturePlan:
        """Return the blocks and the uses of all parameters; nothing is computed."""
        key, (own, others) = self._key(params, batch)
        return self._plan(key, own, others)

    def _plan(self, key: Key, own: list[Any], others: list[Any]) -> CapturePlan:
        found: list[CapturePlan] = []

        def trace(own: Any, others: Any) -> Any:
            found.append(self._program(key, own, others).plan)
            return ()

        jax.eval_shape(trace, own, others)
        return found[0]

    def _projection(self, key: Key, own: list[Any], others: list[Any]) -> Any:
        """Return the matrices of each block; those of a rank are made once for a signature."""
        if self._rank is None:
            return self._matrices
        types = tuple((x.shape, x.dtype) for x in map(_compat.typeof, (*own, *others)))
        if (key, types) not in self._made:
            blocks = self._plan(key, own, others).blocks
            self._made[key, types] = random_matrices(blocks, self._rank)
        return self._made[key, types]

    def _key(self, params: Any, batch: Any) -> tuple[Key, tuple[list[Any], list[Any]]]:
        """Return what is static of the arguments, and their arrays."""
        own, of_params = Static.split(params, numbers=False)
        others, of_batch = Static.split(batch, numbers=True)
        axes = of_batch.of_arrays(batch_axes_of(batch, self._batch_axes))
        names = of_params.of_arrays(leaf_names(params))
        return Key(of_params, of_batch, tuple(axes), tuple(names)), (own, others)

    def _program(self, key: Key, own: Sequence[Any], others: Sequence[Any]) -> CaptureProgram:
        examples = examples_of(key.batch.merge(others), key.batch.spread(key.axes, None))
        chosen = watched(self._names, list(zip(key.names, own, strict=True)))
        program = CaptureProgram(self._request, key, own, others, examples, chosen)
        self._warn(program.plan)
        return program

    def _compute(self, key: Key, own: Any, others: Any, projection: Any) -> Captured:
        program = self._program(key, own, others)
        return program.compute(projection)

    def _warn(self, plan: CapturePlan) -> None:
        for name, where in plan.slow.items():
            if (name, where) not in self._warned:
                self._warned.add((name, where))
                warnings.warn(
                    f"The parameter {name!r} is used by {where}, for which there is no rule: its "
                    "gradients are computed one example after the other, which is slow. Hint: "
                    "names= leaves it out.",
                    stacklevel=stack_level(),
                )


def _as_tuples(projection: Any) -> dict[str, tuple[Any, Any]] | None:
    """Return projection matrices as pairs of arrays."""
    if projection is None:
        return None
    if not isinstance(projection, Mapping):
        raise ArgumentError(
            "`projection` must be a rank, or a dict of blocks with (left, right); "
            f"got {projection!r:.200}."
        )
    return {name: _pair(name, each) for name, each in projection.items()}


def _pair(name: str, sides: Any) -> tuple[Any, Any]:
    if isinstance(sides, Projection):
        return (sides.left, sides.right)
    if not isinstance(sides, (tuple, list)) or len(sides) != 2:
        raise ArgumentError(
            f"`projection` of {name!r} must be (left, right), matrices [rows, rank] and "
            f"[columns, rank], where None leaves a side whole; got {sides!r:.200}."
        )
    return (sides[0], sides[1])
