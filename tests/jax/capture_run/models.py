"""The models of ``sawlog.testing``'s cases as JAX functions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from sawlog.testing import CaptureCase


def _fc(params: Any, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def _linear(params: Any, x: Any) -> Any:
    return _fc(params, "fc", x)


def _mlp(params: Any, x: Any) -> Any:
    return _fc(params, "fc2", jnp.tanh(_fc(params, "fc1", x)))


def _embedding(params: Any, x: Any) -> Any:
    return params["table.weight"][x].mean(1) @ params["head.weight"].T


def _tied(params: Any, x: Any) -> Any:
    return x @ params["fc.weight"].T @ params["fc.weight"]


OUTPUTS = {
    "linear": _linear,
    "mlp": _mlp,
    "tokens": _linear,
    "embedding": _embedding,
    "tied": _tied,
}


def loss_of(case: CaptureCase) -> Any:
    """The loss function ``loss_fn(params, (x, y))`` of a case."""
    outputs = OUTPUTS[case.name]

    def loss_fn(params: Any, batch: Any) -> Any:
        x, y = batch
        squares = (outputs(params, x) - y) ** 2
        return squares.sum(tuple(range(1, squares.ndim)))

    return loss_fn


def params_of(case: CaptureCase, dtype: Any = jnp.float32) -> Any:
    """The weights of a case."""
    return {name: jnp.asarray(value, dtype) for name, value in case.weights.items()}


def batch_of(case: CaptureCase, dtype: Any = jnp.float32) -> Any:
    """The data of a case."""
    is_float = case.inputs.dtype.kind == "f"
    inputs = jnp.asarray(case.inputs, dtype if is_float else jnp.int32)
    return inputs, jnp.asarray(case.targets, dtype)
