"""Runs whose batches are sharded over devices: scores, also of tokens, are those of one device."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import sawlog
import sawlog.jax

WORDS, LENGTH, EXAMPLES = 7, 5, 8


def loss_fn(params: Any, batch: Any) -> Any:
    """The loss of a small language model whose batch may be sharded."""
    x = params["embedding"].at[batch["words"]].get(out_sharding=_spec(batch["words"]))
    logits = jnp.tanh(x @ params["hidden"]) @ params["out"]
    chosen = jax.nn.one_hot(batch["words"], WORDS)[:, 1:]
    return -((jax.nn.log_softmax(logits[:, :-1]) * chosen).sum(-1) * batch["mask"][:, 1:]).sum(-1)


def _spec(array: Any) -> Any:
    sharding = jax.typeof(array).sharding
    return None if sharding.mesh.empty or not any(sharding.spec) else P(sharding.spec[0])


def data() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    shapes = {"embedding": (WORDS, 3), "hidden": (3, 4), "out": (4, WORDS)}
    params = {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}
    words = rng.integers(0, WORDS, (EXAMPLES, LENGTH))
    mask = (np.arange(LENGTH) < rng.integers(2, LENGTH + 1, (EXAMPLES, 1))).astype(np.float32)
    return params, {"words": words.astype(np.int32), "mask": mask}


def scores(folder: Path, mesh: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all examples, and of their tokens, of a run with batches sharded over a mesh."""
    params, whole = data()
    explicit = mesh is not None and mesh.axis_types[0] == AxisType.Explicit
    context = jax.set_mesh(mesh) if explicit else contextlib.nullcontext()
    run = sawlog.init("run", root=folder)
    run.setup(statistic="ekfac", log=["forward", "backward", "grad"])
    with context:
        batches = [{k: jnp.asarray(x[i : i + 4]) for k, x in whole.items()} for i in (0, 4)]
        if mesh is not None:
            batches = jax.device_put(batches, NamedSharding(mesh, P("d")))
        run.watch(loss_fn, params, batches[0], quiet=True)
        run.extract(loss_fn, params, batches, quiet=True)
        run.eval()
        run.record(["q"], params, {k: jnp.asarray(x[2:3]) for k, x in whole.items()})
    logs = run.get_log()
    return (
        run.influence.compute_influence_all(logs).values,
        sawlog.influence.token_scores(run.store_path, logs),
    )


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_scores_are_those_of_one_device(tmp_path: Path, kind: Any) -> None:
    mesh = jax.make_mesh((4,), ("d",), axis_types=(kind,))
    of_one, of_tokens = scores(tmp_path / "one", None)
    found, tokens = scores(tmp_path / "four", mesh)
    scale = np.abs(of_one).max()
    np.testing.assert_allclose(found, of_one, rtol=1e-3, atol=1e-4 * scale)
    np.testing.assert_allclose(tokens, of_tokens, rtol=1e-3, atol=1e-4 * scale)
    np.testing.assert_allclose(tokens.sum(-1), found, rtol=1e-3, atol=1e-4 * scale)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Any, dict[str, Any]]] = {
    "plain": ((4, 4, 2), (3, 3, 2, 3), ("NHWC", "HWIO", "NHWC"), {}),
    "transposed": (
        (5, 2),
        (3, 2, 3),
        ("NHC", "HIO", "NHC"),
        {"lhs_dilation": (2,), "padding": [(1, 1)]},
    ),
    "grouped": ((4, 4, 2), (3, 3, 1, 4), ("NHWC", "HWIO", "NHWC"), {"feature_group_count": 2}),
}


@pytest.mark.parametrize("form", CONVOLUTIONS)
def test_rows_of_convolutions_of_a_sharded_batch(form: str) -> None:
    """XLA maps the derivative of a convolution wrongly over examples on several devices."""
    image, kernel, layout, options = CONVOLUTIONS[form]
    rng = np.random.default_rng(0)
    params = {"k": jnp.asarray(rng.normal(size=kernel), jnp.float32)}
    images = jnp.asarray(rng.normal(size=(EXAMPLES, *image)), jnp.float32)

    def loss(params, images):
        strides = (1,) * (len(kernel) - 2)
        out = jax.lax.conv_general_dilated(
            images,
            params["k"],
            strides,
            **{"padding": "SAME", **options},
            dimension_numbers=layout,
        )
        return (jnp.tanh(out) ** 2).reshape(len(out), -1).sum(-1)

    each = [jax.grad(lambda p, x=x: loss(p, x[None])[0])(params)["k"] for x in images]
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    sharded = jax.device_put(images, NamedSharding(mesh, P("d")))
    for batch in (images, sharded):
        captured = sawlog.jax.capture(loss, prove=True)(params, batch)
        captured.check()
        np.testing.assert_allclose(captured.grads["k"], np.stack(each), rtol=1e-4, atol=1e-4)
