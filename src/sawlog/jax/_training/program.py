"""A training program as pure functions: start, one step, and the derivative of one step.

Types, with ``Q`` queries and batches of ``B`` examples:

- ``start(key) -> arrays``
- ``advance(arrays, batch, weights [B], key) -> arrays``
- ``pull_back(arrays, batch, weights [B], key, cotangents [Q, ...])`` returns the cotangents of the
  state before the step, ``[Q, ...]``, and those of the weights, ``[Q, B]``
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp

from sawlog.errors import ArgumentError
from sawlog.jax._training.safe_roots import with_safe_roots
from sawlog.jax._training.states import Arrays, StateLayout, check_precision
from sawlog.jax._training.stops import chooses_gradients, with_stops_followed

PullBack = Callable[[Arrays, Any, Any, Any, list[Any]], tuple[list[Any], Any]]


@dataclasses.dataclass(frozen=True)
class TrainingProgram:
    """The functions of a training program, on arrays as :class:`StateLayout` splits them.

    Args:
        layout: Where the arrays are in the user's state.
        begin: ``begin(key)`` returns the user's state before the first step.
        advance: One step.
        pull_back: The derivative of one step, from its end to its start, for all queries.
        by_reverse: The same, if ``pull_back`` is only right where the gradient of the loss is its
            derivative.
        doubtful: Whether it may not be, for the arguments of ``advance``.
        model: ``model(state)`` returns what metrics take: the parameters, or the whole state.
        losses: ``losses(arrays, batch) -> [B]`` is the loss of each example, if it is known.
        trained: How many arrays of the state are parameters: the first ones with a derivative.
    """

    layout: StateLayout
    begin: Callable[[Any], Any]
    advance: Callable[[Arrays, Any, Any, Any], Arrays]
    pull_back: PullBack
    model: Callable[[Any], Any]
    losses: Callable[[Arrays, Any], Any] | None = None
    trained: int = 0
    by_reverse: PullBack | None = None
    doubtful: Callable[[Arrays, Any, Any, Any], bool] = lambda *_: False

    def start(self, key: Any) -> Arrays:
        """Return the arrays before the first step."""
        return self.layout.split(self.begin(key))


def takes_key(function: Callable[..., Any], without: int) -> bool:
    """Return whether a function takes one more argument than ``without``: a random key."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.kind in positional]) > without


def from_step(
    step: Callable[..., Any],
    init: Callable[[Any], Any],
    key: Any,
    changing: Collection[int] = (),
) -> TrainingProgram:
    """Build a program from ``step(state, batch, weights[, key]) -> state``.

    ``changing`` has the places of Python numbers in the state that steps change.
    """
    state = init(key)
    check_precision(state)
    layout = StateLayout.of(state, changing)
    keyed = takes_key(step, 3)

    def advance(arrays: Arrays, batch: Any, weights: Any, step_key: Any) -> Arrays:
        more = (step_key,) if keyed else ()
        return layout.split(step(layout.join(arrays), batch, weights, *more))

    return TrainingProgram(layout, init, advance, _reverse(advance), lambda state: state)


def from_loss(
    loss: Callable[..., Any],
    optimizer: Any,
    init: Callable[[Any], Any],
    key: Any,
    changing: Collection[int] = (),
) -> TrainingProgram:
    """Build a program from ``loss(params, batch[, key]) -> [B]`` and an optimizer.

    ``changing`` has the places of Python numbers in the state that steps change.
    """
    begin_optimizer, update = _optimizer(optimizer)

    def begin(own_key: Any) -> Any:
        params = init(own_key)
        trained = StateLayout.of(params).split(params)[0]
        names = StateLayout.of(params)
        return params, begin_optimizer(_trainable(names, params, trained))

    state = begin(key)
    check_precision(state[0], "params")
    check_precision(state[1], "optimizer state")
    layout, own = StateLayout.of(state, changing), StateLayout.of(state[0])
    keyed = takes_key(loss, 2)

    def total(trained: list[Any], weights: Any, rest: list[Any], batch: Any, step_key: Any) -> Any:
        params = own.join((trained, rest))
        losses = loss(params, batch, step_key) if keyed else loss(params, batch)
        if jnp.shape(losses) != jnp.shape(weights):
            raise ArgumentError(
                f"`loss` must return one number for each example of a batch, of the shape "
                f"{jnp.shape(weights)}; got {jnp.shape(losses)}. Hint: do not average over the "
                "batch."
            )
        weighted = jnp.sum(losses * weights.astype(losses.dtype))
        present = jnp.sum(weights)
        return weighted / jnp.where(present > 0, present, 1).astype(losses.dtype)

    def apply(grads: list[Any], arrays: Arrays) -> Arrays:
        params, optimizer_state = layout.join(arrays)
        trained, rest = own.split(params)
        tree = _trainable(own, params, trained)
        new, optimizer_state = update(_trainable(own, params, grads), optimizer_state, tree)
        return layout.split((own.join((jax.tree.leaves(new), rest)), optimizer_state))

    def parts(arrays: Arrays) -> tuple[list[Any], list[Any]]:
        return own.split(layout.join(arrays)[0])

    def advance(arrays: Arrays, batch: Any, weights: Any, step_key: Any) -> Arrays:
        trained, rest = parts(arrays)
        grads = jax.grad(total)(trained, weights, rest, batch, step_key)
        return apply(grads, arrays)

    safe = with_safe_roots(with_stops_followed(apply))

    def pull_back(
        arrays: Arrays, batch: Any, weights: Any, step_key: Any, cotangents: list[Any]
    ) -> tuple[list[Any], Any]:
        """Use that the Hessian is symmetric: one product with it, in forward mode, is enough."""
        trained, rest = parts(arrays)

        def slopes(trained: list[Any]) -> tuple[list[Any], Any]:
            return jax.grad(total, argnums=(0, 1))(trained, weights, rest, batch, step_key)

        (grads, _), along = jax.linearize(slopes, trained)

        def ends(grads: list[Any], inexact: list[Any]) -> list[Any]:
            return safe(grads, (inexact, arrays[1]))[0]

        _, pull = jax.vjp(ends, grads, arrays[0])

        def one(cotangent: list[Any]) -> tuple[list[Any], Any]:
            of_grads, of_arrays = pull(cotangent)
            curved, of_weights = along(of_grads)
            bent = _add_to_params(layout, own, of_arrays, curved)
            return bent, of_weights

        return jax.vmap(one)(cotangents)

    def losses(arrays: Arrays, batch: Any) -> Any:
        return loss(layout.join(arrays)[0], batch)

    def doubtful(arrays: Arrays, batch: Any, weights: Any, step_key: Any) -> bool:
        trained, rest = parts(arrays)
        return chooses_gradients(lambda own: total(own, weights, rest, batch, step_key), trained)

    return TrainingProgram(
        layout,
        begin,
        advance,
        pull_back,
        lambda state: state[0],
        None if keyed else losses,  # with dropout, each example would need a key
        own.kinds.count(0),
        _reverse(advance),
        doubtful,
    )


def _add_to_params(
    layout: StateLayout, own: StateLayout, of_arrays: list[Any], more: list[Any]
) -> list[Any]:
    """Add to the leaves of the parameters, which are the first ones of the state."""
    count = len(more)
    return [a + b for a, b in zip(of_arrays[:count], more, strict=True)] + of_arrays[count:]


def _reverse(advance: Callable[..., Arrays]) -> Callable[..., tuple[list[Any], Any]]:
    """Return the derivative of a step by reverse mode."""
    advance = with_safe_roots(with_stops_followed(advance))

    def pull_back(
        arrays: Arrays, batch: Any, weights: Any, step_key: Any, cotangents: list[Any]
    ) -> tuple[list[Any], Any]:
        def ends(inexact: list[Any], weights: Any) -> list[Any]:
            return advance((inexact, arrays[1]), batch, weights, step_key)[0]

        _, pull = jax.vjp(ends, arrays[0], weights)
        return jax.vmap(pull)(cotangents)

    return pull_back


def _trainable(layout: StateLayout, params: Any, leaves: list[Any]) -> Any:
    """Return the parameters with None for each leaf that is not trained, as optimizers take it."""
    source = iter(leaves)
    return jax.tree.unflatten(
        layout.tree, [next(source) if kind == 0 else None for kind in layout.kinds]
    )


def _optimizer(optimizer: Any) -> tuple[Callable[[Any], Any], Callable[..., Any]]:
    """Return ``begin(params)`` and ``update(grads, state, params) -> (params, state)``."""
    if hasattr(optimizer, "init") and hasattr(optimizer, "update"):
        begin, rule = optimizer.init, optimizer.update
    elif isinstance(optimizer, tuple) and len(optimizer) == 2 and all(map(callable, optimizer)):
        begin, rule = optimizer
    elif callable(optimizer):
        return (lambda params: ()), (lambda grads, state, params: (optimizer(grads, params), ()))
    else:
        raise ArgumentError(
            f"`optimizer` must be an optax optimizer, a pair (init, update) of functions, or a "
            f"function update(grads, params) -> params; got {optimizer!r:.200}."
        )

    def update(grads: Any, state: Any, params: Any) -> tuple[Any, Any]:
        try:
            updates, state = rule(grads, state, params)
        except TypeError as error:
            if "required keyword-only argument" not in str(error):
                raise
            raise ArgumentError(
                f"`optimizer` needs more than gradients: {error}. Hint: describe training by "
                "`step`, which computes what it needs. A line search, as that of optax.lbfgs, is a "
                "loop of unknown length, which has no derivative."
            ) from error
        return jax.tree.map(lambda p, u: (p + u).astype(p.dtype), params, updates), state

    return begin, update
