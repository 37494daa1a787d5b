"""Small training programs, each written twice: for ``through_training``, and as a plain loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

COUNT = 6
ORDER = np.array([[0, 3, 1], [5, 2, 4], [1, 2, 0], [4, 5, 3]])
WEIGHTS = np.array([1.0, 0.5, 1.0, 0.0, 2.0, 1.0])


def data(count: int = COUNT, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(count, 2))
    return x, np.sin(x[:, 0]) + 0.3 * random.normal(size=count)


def init(key: Any) -> dict[str, Any]:
    first, second = jax.random.split(key)
    return {"a": jax.random.normal(first, (2, 3)), "b": jax.random.normal(second, (3,))}


def outputs(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["a"]) @ params["b"]


def loss(params: Any, batch: Any) -> Any:
    return (outputs(params, batch[0]) - batch[1]) ** 2


def dropped(params: Any, batch: Any, key: Any) -> Any:
    """The loss with dropout of the hidden layer."""
    hidden = jnp.tanh(batch[0] @ params["a"])
    hidden = jnp.where(jax.random.bernoulli(key, 0.7, hidden.shape), hidden / 0.7, 0)
    return (hidden @ params["b"] - batch[1]) ** 2


def chased(params: Any, batch: Any) -> Any:
    """The loss with a target that the model computes itself and that gradients do not see."""
    found = outputs(params, batch[0])
    target = jax.lax.stop_gradient(outputs(params, 0.5 * batch[0]))
    return (found - batch[1]) ** 2 + (found - target) ** 2


def own_scale(params: Any, batch: Any) -> Any:
    """The loss with a weight for each example that depends on it, as gradients do not see."""
    found = loss(params, batch)
    return found * jax.lax.stop_gradient(1 / (1 + found))


@jax.custom_vjp
def clipped(x: Any) -> Any:
    """The identity, whose gradient is clipped smoothly."""
    return x


clipped.defvjp(lambda x: (x, None), lambda _, slope: (jnp.tanh(4 * slope),))


def clipped_inside(params: Any, batch: Any) -> Any:
    return (clipped(jnp.tanh(clipped(batch[0] @ params["a"]))) @ params["b"] - batch[1]) ** 2


def chased_step(params: Any, batch: Any, weights: Any) -> Any:
    """A gradient step of the length of the gradient, which is stopped, too."""
    grads = jax.grad(lambda p: weighted(chased(p, batch), weights))(params)
    size = jax.lax.stop_gradient(optax.tree.norm(grads))
    return jax.tree.map(lambda p, g: p - 0.2 * g / (1 + size), params, grads)


def classes(params: Any, batch: Any) -> Any:
    """A cross entropy, whose maximum is stopped without effect."""
    outs = jnp.stack([outputs(params, batch[0]), jnp.zeros(len(batch[1]))], 1)
    return optax.softmax_cross_entropy_with_integer_labels(outs, (batch[1] > 0).astype(int))


def weighted(losses: Any, weights: Any) -> Any:
    return jnp.sum(losses * weights) / jnp.sum(weights)


def normed_begin(key: Any) -> dict[str, Any]:
    """A state with batch-norm statistics, a random key and a counter."""
    params = init(key)
    memory = optax.adam(0.05).init(params)
    stats = {"mean": jnp.zeros(3), "var": jnp.ones(3)}
    return {
        "params": params,
        "stats": stats,
        "memory": memory,
        "key": key,
        "count": jnp.zeros((), int),
    }


def normed_step(state: Any, batch: Any, weights: Any) -> Any:
    """Batch norm with running statistics, dropout from a key in the state, and Adam."""
    key, own = jax.random.split(state["key"])

    def total(params: Any) -> Any:
        hidden = batch[0] @ params["a"]
        share = weights / jnp.sum(weights)
        mean = share @ hidden
        var = share @ (hidden - mean) ** 2
        normed = jnp.tanh((hidden - mean) / jnp.sqrt(var + 1e-3))
        normed = jnp.where(jax.random.bernoulli(own, 0.8, normed.shape), normed, 0)
        return weighted((normed @ params["b"] - batch[1]) ** 2, weights), (mean, var)

    grads, (mean, var) = jax.grad(total, has_aux=True)(state["params"])
    updates, memory = optax.adam(0.05).update(grads, state["memory"], state["params"])
    old = state["stats"]
    stats = {"mean": 0.9 * old["mean"] + 0.1 * mean, "var": 0.9 * old["var"] + 0.1 * var}
    params = optax.apply_updates(state["params"], updates)
    return {
        "params": params,
        "stats": stats,
        "memory": memory,
        "key": key,
        "count": state["count"] + 1,
    }


def normed_metric(state: Any, batch: Any) -> Any:
    hidden = batch[0] @ state["params"]["a"]
    normed = (hidden - state["stats"]["mean"]) / jnp.sqrt(state["stats"]["var"] + 1e-3)
    return (jnp.tanh(normed) @ state["params"]["b"] - batch[1]) ** 2


def accumulated_step(state: Any, batch: Any, weights: Any) -> Any:
    """Gradients summed over the examples one by one, in a loop, then one step of momentum."""
    params, velocity = state

    def add(total: Any, each: Any) -> Any:
        x, y, weight = each
        slope = jax.grad(lambda p: weight * loss(p, (x[None], y[None]))[0])(params)
        return jax.tree.map(jnp.add, total, slope), None

    zeros = jax.tree.map(jnp.zeros_like, params)
    grads, _ = jax.lax.scan(add, zeros, (*batch, weights))
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g / len(weights), velocity, grads)
    return jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity


def accumulated_begin(key: Any) -> Any:
    params = init(key)
    return params, jax.tree.map(jnp.zeros_like, params)


@dataclasses.dataclass(frozen=True)
class Case:
    """A program: ``loss`` and ``optimizer``, or ``step``."""

    options: dict[str, Any]
    metric: Callable[[Any, Any], Any] = loss
    difference: float = 1e-5  # the step of central differences
    rtol: float = 1e-5

    def ends(self, key: Any, keys: Any, weights: Any, order: Any, examples: Any, asked: Any) -> Any:
        """Train by a plain loop for each row of weights; return the metrics of the queries."""
        begin, advance = self._begin(key), jax.jit(jax.vmap(self._advance, (0, None, None, 0)))
        state = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(weights), *a.shape)), begin)
        for at, rows in enumerate(order):
            batch = tuple(jnp.asarray(a)[rows] for a in examples)
            state = advance(state, batch, keys[at], weights[:, rows])
        last = state if "step" in self.options else state[0]
        return jax.jit(jax.vmap(lambda one: self.metric(one, asked)))(last)

    def _begin(self, key: Any) -> Any:
        state = self.options["init"](key)
        return state if "step" in self.options else (state, self.options["optimizer"].init(state))

    def _advance(self, state: Any, batch: Any, key: Any, weights: Any) -> Any:
        if "step" in self.options:
            return self.options["step"](state, batch, weights)
        (params, memory), own = state, self.options["loss"]
        more = (key,) if own is dropped else ()
        grads = jax.grad(lambda p: weighted(own(p, batch, *more), weights))(params)
        updates, memory = self.options["optimizer"].update(grads, memory, params)
        return optax.apply_updates(params, updates), memory


def by_loss(optimizer: Any, own: Callable[..., Any] = loss) -> Case:
    return Case({"loss": own, "optimizer": optimizer, "init": init, "metric": loss})


def accumulating():
    """Accumulation by optax in float64: by default it is in float32, too coarse for differences.

    optax turns the dtype into float32 unless 64 bits are enabled when the object is made.
    """
    with jax.enable_x64(True):
        return optax.MultiSteps(optax.adam(0.05), 2, accumulator_dtype="float64")


CASES = {
    "sgd with a schedule": by_loss(optax.sgd(optax.cosine_decay_schedule(0.2, 4))),
    "momentum, clipping, weight decay": by_loss(
        optax.chain(
            optax.clip_by_global_norm(0.5),
            optax.add_decayed_weights(0.01),
            optax.sgd(0.1, momentum=0.9, nesterov=True),
        )
    ),
    "adam": by_loss(optax.adam(0.05)),
    "adamw": by_loss(optax.adamw(0.05, weight_decay=0.1)),
    "dropout": by_loss(optax.sgd(0.1), dropped),
    "accumulation by optax": by_loss(accumulating()),
    "a target that gradients do not see": by_loss(optax.adam(0.05), chased),
    "a scale that gradients do not see": by_loss(optax.sgd(0.1), own_scale),
    "a gradient that is clipped inside": by_loss(optax.sgd(0.1), clipped_inside),
    "cross entropy": by_loss(optax.sgd(0.1), classes),
    "stopped in a jitted step": Case(
        {"step": jax.jit(chased_step), "init": init, "metric": chased}, chased
    ),
    "batch norm": Case(
        {"step": normed_step, "init": normed_begin, "metric": normed_metric}, normed_metric
    ),
    "accumulation in a step": Case(
        {
            "step": jax.jit(accumulated_step),
            "init": accumulated_begin,
            "metric": lambda state, batch: loss(state[0], batch),
        },
        lambda state, batch: loss(state[0], batch),
    ),
}
