"""The oracle: the gradient of each example as a batch of its own."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from sawlog.factored import gradient
from sawlog.jax._capture.parameters import leaf_names


def gradients(loss: Callable[..., Any], params: Any, batch: Any) -> dict[str, Any]:
    """Return ``[examples, *shape]`` for each parameter, by ``vmap(grad)``."""

    def one(params: Any, example: Any) -> Any:
        return loss(params, jax.tree.map(lambda x: x[None], example))[0]

    found = jax.vmap(jax.grad(one), (None, 0))(params, batch)
    return dict(zip(leaf_names(found), jax.tree.leaves(found), strict=True))


def assert_equal(got: dict[str, Any], wanted: dict[str, Any], tolerance: float = 1e-9) -> None:
    """Compare rows by name."""
    assert {*got} == {*wanted}
    for name, rows in wanted.items():
        scale = np.abs(np.asarray(rows)).max(initial=1e-3)
        np.testing.assert_allclose(got[name], rows, atol=tolerance * scale, rtol=0, err_msg=name)


def assert_pairs(captured: Any, plan: Any, projected: Any, matrices: Any) -> None:
    """Compare pairs with gradients element by element, and projected rows, if any, with pairs."""
    captured, projected = jax.device_get((captured, projected))  # small programs compile slowly
    assert {*captured.pairs} == {block.name for block in plan.blocks}
    assert projected is None or {*captured.pairs} == {*projected}
    for layout in plan.layouts:
        block = layout.block
        rows = np.asarray(sum(gradient(pair) for pair in captured.pairs[block.name]))
        rows = rows.reshape(len(rows), *block.shape)  # one group is none
        for name, part in block.parts(rows).items():
            own, other = np.asarray(part), np.asarray(captured.grads[name])
            if name == block.name:
                other = other.reshape(len(other), -1)[:, elements(layout, other.shape[1:])]
            own, other = own.reshape(len(own), -1), other.reshape(len(other), -1)
            np.testing.assert_allclose(own, other, atol=1e-9 * max(np.abs(other).max(), 1e-3))
        if projected is None:
            continue
        left, right = matrices[block.name]
        made = rows if left is None else np.swapaxes(left, -1, -2) @ rows
        made = made if right is None else made @ right
        scale = max(np.abs(made).max(), 1e-3)
        np.testing.assert_allclose(projected[block.name], made, atol=1e-6 * scale)


def elements(layout: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Return the number of the element of the parameter that each element of a block is."""
    atoms = (*layout.groups, *layout.lefts, *layout.rights)
    sizes = [atom.size for atom in atoms]
    steps = np.indices(sizes).reshape(len(sizes), int(np.prod(sizes)))
    places = np.zeros((len(shape), steps.shape[1]), int)
    for atom, step in zip(atoms, steps, strict=True):
        places[atom.dim] += atom.stride * step
    return np.ravel_multi_index(tuple(places), shape)
