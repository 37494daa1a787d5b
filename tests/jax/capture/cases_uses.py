"""Fragments of models: how a parameter may be used."""

import jax
import jax.numpy as jnp
from jax import lax

from .cases_base import _NHWC, case, conv, total


@case({"w": (3, 4), "b": (4,)})
def dense(p, x):
    return total(x @ p["w"] + p["b"])


@case({"w": (4, 3), "b": (4,)})
def parameter_on_the_left(p, x):
    return total((p["w"] @ x.T).T + p["b"])


@case({"w": (4, 3)}, (5, 3))
def positions(p, x):
    return total(jnp.einsum("oi,bti->bot", p["w"], x))


@case({"w": (3, 2, 4), "b": (2, 4)}, (5, 3))
def heads(p, x):
    return total(jnp.einsum("btd,dhk->bthk", x, p["w"]) + p["b"])


@case({"w": (2, 3, 4)}, (5, 2, 3))
def several_contracted(p, x):
    return total(jnp.einsum("bthk,hkd->btd", x, p["w"]))


@case({"w": (3, 2, 4)}, (5, 2, 3))
def contracted_in_another_order(p, x):
    return total(jnp.einsum("bthk,khd->btd", x, p["w"]))


@case({"w": (3, 2, 4)}, (5, 2, 3))
def contracted_after_a_transpose(p, x):
    return total(jnp.einsum("bthk,hkd->btd", x, jnp.transpose(p["w"], (1, 0, 2))))


@case({"w": (2, 3, 4)}, (5, 2, 3))
def contracted_from_the_last(p, x):
    return total(lax.dot_general(x, p["w"], (((3, 2), (1, 0)), ((), ()))))


@case({"w": (4, 2, 3)}, (5, 3))
def outputs_in_another_order(p, x):
    return total(jnp.einsum("btd,dhk->bthk", x, jnp.transpose(p["w"], (2, 1, 0))))


@case({"w": (2, 3), "v": (3,)}, (5, 3))
def broadcast_and_transposed(p, x):
    w = jnp.transpose(jnp.broadcast_to(p["w"], (4, 2, 3)), (2, 0, 1))
    return total(jnp.einsum("btd,dhk->bthk", x, w)) + total(x @ jnp.broadcast_to(p["v"], (4, 3)).T)


@case({"w": (2, 3, 4)}, (5, 2, 3))
def groups(p, x):
    return total(jnp.einsum("btgi,gio->btgo", x, p["w"]))


@case({"w": (3, 4)}, (5, 3))
def merged_tokens(p, x):
    y = x.reshape(-1, 3) @ p["w"]
    return total(y.reshape(x.shape[0], 5, 4))


@case({"w": (3, 4), "b": (4,)}, (5, 3))
def tokens_outermost(p, x):
    y = jnp.swapaxes(x, 0, 1).reshape(-1, 3) @ p["w"] + p["b"]
    return total(jnp.swapaxes(y.reshape(5, -1, 4), 0, 1))


@case({"w": (3, 3)})
def used_twice(p, x):
    return total(jnp.tanh(x @ p["w"]) @ p["w"])


@case({"w": (3, 3)})
def product_with_itself(p, x):
    return total(x @ (p["w"] @ p["w"].T))


@case({"w": (3, 4), "a": (3, 2), "c": (2, 4)})
def low_rank_update(p, x):
    return total(x @ (p["w"] + p["a"] @ p["c"]))


@case({"w": (4, 3)})
def transposed_and_cast(p, x):
    return total(x @ p["w"].T.astype(jnp.float64).copy())


@case({"w": (12,)})
def reshaped(p, x):
    return total(x @ p["w"].reshape(3, 4))


@case({"w": (2, 6)})
def reshaped_across(p, x):
    return total(x @ p["w"].reshape(3, 4))


@case({"w": (3, 8)})
def sliced(p, x):
    return total(x @ p["w"][:, 2:6] + x @ p["w"][:, ::2])


@case({"a": (3, 2), "c": (3, 2)})
def stacked(p, x):
    both, wide = jnp.stack([p["a"], p["c"]]), jnp.concatenate([p["a"], p["c"]], 1)
    return total(jnp.einsum("bi,sio->bso", x, both)) + total(x @ wide)


@case({"w": (3, 3)})
def bilinear(p, x):
    return jnp.einsum("bi,ij,bj->b", x, p["w"], x)


@case({"w": (4, 3), "b": (4,)})
def vmapped_model(p, x):
    return total(jax.vmap(lambda one: p["w"] @ one + p["b"])(x))


@case({"w": (4, 3)}, (5, 3))
def vmapped_twice(p, x):
    return total(jax.vmap(jax.vmap(lambda one: p["w"] @ one), in_axes=1, out_axes=1)(x))


@case({"k": (3, 2, 2, 4), "b": (4,)}, (5, 4, 2))
def conv_2d(p, x):
    return total(conv(x, p["k"], _NHWC, (2, 1)) + p["b"])


@case({"k": (4, 2, 3, 2), "b": (4,)}, (2, 5, 4))
def conv_channels_first(p, x):
    y = conv(x, p["k"], ("NCHW", "OIHW", "NCHW"), padding=[(1, 2), (0, 1)], rhs_dilation=(1, 2))
    return total(y + p["b"][:, None, None])


@case({"k": (3, 2, 4)}, (6, 2))
def conv_1d_transposed(p, x):
    spec = ("NWC", "WIO", "NWC")
    return total(conv(x, p["k"], spec, (1,), [(2, 2)], lhs_dilation=(2,)))


@case({"k": (2, 2, 2, 6)}, (4, 3, 4))
def conv_grouped(p, x):
    return total(conv(x, p["k"], _NHWC, padding="VALID", feature_group_count=2))


@case({"k": (2, 2, 1, 4)}, (4, 3, 4))
def conv_depthwise(p, x):
    return total(conv(x, p["k"], _NHWC, feature_group_count=4))


# -- lookups ----------------------------------------------------------------------------------


@case({"e": (6, 4)}, (), ids=6)
def embedding(p, x):
    return total(p["e"][x])


@case({"e": (6, 4), "w": (4, 4)}, (5,), ids=6)
def tied_head(p, x):
    scores = jax.nn.log_softmax(jnp.tanh(p["e"][x] @ p["w"]) @ p["e"].T)
    return -jnp.take_along_axis(scores, x[..., None], -1)[..., 0].mean(-1)


@case({"e": (4, 6)}, (5,), ids=6)
def embedding_columns(p, x):
    return total(jnp.take(p["e"], x, axis=1).transpose(1, 2, 0))


@case({"e": (6, 4)}, (5,), ids=8)
def out_of_bounds(p, x):
    return total(jnp.nan_to_num(p["e"].at[x].get(mode="fill", fill_value=0.0)))


@case({"e": (6, 4)}, (5,), ids=8)
def clipped_index(p, x):
    return total(p["e"].at[x].get(mode="clip"))


@case({"e": (6, 4)}, (5,), ids=6)
def one_hot(p, x):
    return total(jax.nn.one_hot(x, 6, dtype=jnp.float64) @ p["e"])


@case({"e": (6, 4), "pos": (8, 4)}, (5,), ids=6)
def position_table(p, x):
    return total(p["e"][x] + p["pos"][jnp.arange(5)])


@case({"e": (6, 5)}, (2,), ids=5)
def looked_up_elements(p, x):
    return total(p["e"][x[:, 0], x[:, 1]][:, None])


# -- elementwise ------------------------------------------------------------------------------


@case({"s": (3,), "b": (3,)}, (5, 3))
def scale_and_shift(p, x):
    return total(x * p["s"] + p["b"])


@case({"a": (5, 3), "b": (3,)}, (5, 3))
def difference_and_quotient(p, x):
    return total((x - p["a"]) / (1 + p["b"] ** 2))


@case({"t": ()}, (5, 3))
def temperature(p, x):
    return total(jax.nn.softmax(x * jnp.exp(p["t"])))


@case({"a": (3,), "b": (3,)}, (5, 3))
def maximum_and_where(p, x):
    return total(jnp.where(x > 0, jnp.maximum(x, p["a"]), p["b"] * x))


@case({"w": (3, 4), "v": (), "u": ()}, (5, 3))
def padded_with_a_parameter(p, x):
    y = lax.pad(x @ p["w"], p["v"], ((0, 0, 0), (2, -1, 1), (0, 1, 0)))
    both = lax.pad(p["w"], p["u"], ((0, 0, 0), (0, 2, 0)))
    return total(y) + total(x @ both)


@case({"low": (3,), "high": (3,)}, (5, 3))
def clipped_between(p, x):
    return total(jnp.clip(x, p["low"] - 1, p["high"] + 1))


@case({"c": (1, 1, 3), "pos": (1, 6, 3)}, (5, 3))
def class_token(p, x):
    token = jnp.broadcast_to(p["c"], (x.shape[0], 1, 3))
    return total(jnp.concatenate([token, x], axis=1) + p["pos"])


@case({"a": (3,)}, (5, 3))
def broadcast_to_the_batch(p, x):
    return total(jnp.broadcast_to(p["a"], x.shape) * x + jnp.tile(p["a"], (x.shape[0], 5, 1)))


@case({"a": (3,), "b": (3,)}, (3,))
def powers(p, x):
    return total(jnp.abs(x) ** p["a"] + jnp.arctan2(x, p["b"]))


# -- normalisation ----------------------------------------------------------------------------


@case({"s": (4,), "b": (4,)}, (5, 4))
def layer_norm(p, x):
    return total(jax.nn.standardize(x, axis=-1) * p["s"] + p["b"])


@case({"s": (4,)}, (3, 3, 4))
def group_norm(p, x):
    y = x.reshape(x.shape[0], 9, 2, 2)
    y = (y - y.mean((1, 3), keepdims=True)) / jnp.sqrt(y.var((1, 3), keepdims=True) + 1e-3)
    return total(y.reshape(x.shape) * p["s"])


@case({"v": (3, 4), "g": (4,)})
def weight_norm(p, x):
    return total(x @ (p["v"] / jnp.linalg.norm(p["v"], axis=0) * p["g"]))


@case({"w": (3, 3), "u": (3,)})
def spectral_norm(p, x):
    def body(u, _):
        u = p["w"].T @ (p["w"] @ u)
        return u / jnp.linalg.norm(u), None

    u, _ = lax.scan(body, p["u"], None, length=3)
    return total(x @ p["w"] / jnp.linalg.norm(p["w"] @ u))


def _definite(w):
    return w @ w.T + 3 * jnp.eye(len(w))


@case({"w": (3, 3)}, slow=True)
def solved_for_columns(p, x):
    return total(jnp.linalg.solve(_definite(p["w"]), x.T).T)


@case({"w": (3, 3)})
def solved_for_rows(p, x):
    lower = jnp.linalg.cholesky(_definite(p["w"]))
    return total(lax.linalg.triangular_solve(lower, x, left_side=False, lower=True))


@case({"w": (3, 3)}, slow=True)
def solved_where_rows_are_no_examples(p, x):
    # as many examples as features: the last dimension is not that of the examples
    solved = jax.vmap(lambda b: jnp.linalg.solve(_definite(p["w"]), b))(x)
    return total(solved)


@case({"w": (3, 3)})
def gaussian_log_likelihood(p, x):
    lower = jnp.linalg.cholesky(_definite(p["w"]))
    z = jax.scipy.linalg.solve_triangular(lower, x.T, lower=True)
    return -0.5 * (z**2).sum(0) - jnp.log(jnp.diagonal(lower)).sum()


@case({"w": (3, 3)}, (3, 3), slow=True)
def solved_with_a_matrix_of_each_example(p, x):
    return total(jnp.linalg.solve(x + 5 * jnp.eye(3), p["w"]))
