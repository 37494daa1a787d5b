"""One convolutional model of four libraries: runs have the gradients of `vmap(grad)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import sawlog

X = np.random.default_rng(0).normal(size=(4, 5, 5, 2)).astype(np.float32)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.LayerNorm()(jax.nn.tanh(linen.Conv(3, (2, 2))(x)))
        return linen.Dense(2)(x.reshape(len(x), -1))


def in_linen() -> tuple[Any, Any]:
    model = Linen()
    return model.init(jax.random.key(0), X), model.apply


class Nnx(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv = nnx.Conv(2, 3, (2, 2), rngs=rngs)
        self.norm = nnx.LayerNorm(3, rngs=rngs)
        self.head = nnx.Linear(75, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.head(self.norm(jax.nn.tanh(self.conv(x))).reshape(len(x), -1))


def in_nnx() -> tuple[Any, Any]:
    graph, state = nnx.split(Nnx())
    return nnx.to_pure_dict(state), lambda params, x: nnx.merge(graph, params)(x)


class Equinox(eqx.Module):
    conv: eqx.nn.Conv2d
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self) -> None:
        self.conv = eqx.nn.Conv2d(2, 3, 2, key=jax.random.key(0))
        self.norm = eqx.nn.LayerNorm((3, 4, 4))
        self.head = eqx.nn.Linear(48, 2, key=jax.random.key(1))

    def __call__(self, x: Any) -> Any:
        return self.head(self.norm(jnp.tanh(self.conv(x))).reshape(-1))


def in_equinox() -> tuple[Any, Any]:
    return Equinox(), lambda model, x: jax.vmap(model)(x.transpose(0, 3, 1, 2))


def in_haiku() -> tuple[Any, Any]:
    def forward(x: Any) -> Any:
        x = hk.LayerNorm(-1, create_scale=True, create_offset=True)(jnp.tanh(hk.Conv2D(3, 2)(x)))
        return hk.Linear(2)(x.reshape(len(x), -1))

    model = hk.without_apply_rng(hk.transform(forward))
    return model.init(jax.random.key(0), X), model.apply


LIBRARIES = {"linen": in_linen, "nnx": in_nnx, "equinox": in_equinox, "haiku": in_haiku}


@pytest.mark.turns(2)
@pytest.mark.parametrize("library", LIBRARIES)
def test_library(library: str, tmp_path: Path) -> None:
    """Inner products of gradients do not depend on how a parameter is laid out as a matrix."""
    params, apply = LIBRARIES[library]()

    def loss_fn(params: Any, x: Any) -> Any:
        return (apply(params, x) ** 2).sum(-1)

    run = sawlog.init(library, root=tmp_path)
    run.watch(loss_fn, params, X, quiet=True)
    run.record(range(4), params, X)
    run.finalize()
    arrays, static = eqx.partition(params, eqx.is_array)
    alone = jax.grad(lambda arrays, x: loss_fn(eqx.combine(arrays, static), x[None])[0])
    grads = jax.tree.leaves(jax.vmap(alone, (None, 0))(arrays, jnp.asarray(X)))
    flat = np.concatenate([np.asarray(g).reshape(4, -1) for g in grads], 1)
    with sawlog.store.open(run.store_path) as reader:
        rows = reader.gather(range(4))
    assert len(rows) in (4, 5)  # two weights, the two vectors of the norm, a bias of its own
    stored = np.concatenate([rows[name].reshape(4, -1) for name in sorted(rows)], 1)
    assert stored.shape == flat.shape
    np.testing.assert_allclose(stored @ stored.T, flat @ flat.T, rtol=1e-4, atol=1e-4)
